"""HTTP APIs that answer with pages of JSON."""
