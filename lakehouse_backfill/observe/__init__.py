"""What a run tells while it works: the clock it goes by, structured logs, progress."""
