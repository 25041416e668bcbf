"""Immutable values without I/O."""
