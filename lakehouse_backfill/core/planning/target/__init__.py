"""What a run may do to its target: modes, rows, schema changes, and who writes the commits."""
