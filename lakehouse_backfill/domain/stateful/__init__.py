"""Stateful jobs: what they declare, and which state a chunk starts from; values without I/O."""
