"""Checksums, sums and totals of partitions."""
