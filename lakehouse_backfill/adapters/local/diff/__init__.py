"""Compare two table states in this process."""
