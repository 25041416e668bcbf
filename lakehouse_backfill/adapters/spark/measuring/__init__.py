"""Checksums, sums and totals of partitions; counts of inputs and chunks."""
