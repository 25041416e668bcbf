"""Recompute partitions with single inputs swapped."""
