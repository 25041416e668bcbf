"""Stateful jobs on Spark: kept states, and rows that come late."""
