"""Tables of PostgreSQL that are migrated."""
