"""Adapters that need Spark."""
