"""Compare two table states on Spark."""
