"""Make an accepted result visible, take it back, finish what stopped half way."""
