"""Which partitions a run restates, and in which chunks."""
