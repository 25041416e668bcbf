"""Inputs of runs: which partitions hold rows of them, and what changed since a run read them."""
