"""Commits through Iceberg's Java API, or by rewriting rows."""
