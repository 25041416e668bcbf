"""Folders of Parquet files that are migrated."""
