"""Recompute partitions with single inputs swapped, to explain differences."""
