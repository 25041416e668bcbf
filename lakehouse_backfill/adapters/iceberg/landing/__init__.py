"""Raw tables, and the ledger of imported files."""
