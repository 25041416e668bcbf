"""Publication of accepted results, rollback, catch-up with live commits, and recovery."""
