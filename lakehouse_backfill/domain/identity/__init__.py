"""Who acts, as values: statements that are signed, and records of an anchor."""
