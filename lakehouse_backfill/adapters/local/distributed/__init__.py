"""A diff on many workers: whole partitions in tasks, or rows that an engine groups by key."""
