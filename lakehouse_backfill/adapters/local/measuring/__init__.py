"""Checksums and measures of rows in this process, without Spark."""
