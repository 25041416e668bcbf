"""Data files read in this process with Arrow and DuckDB."""
