"""Immutable values without I/O: what the rules decide on and the ports exchange."""
