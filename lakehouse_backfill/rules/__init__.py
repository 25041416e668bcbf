"""Pure decisions: model in, model out."""
