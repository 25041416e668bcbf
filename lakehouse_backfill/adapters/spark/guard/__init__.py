"""Stops outside effects of job code, in the driver and in Spark's Python workers."""
