"""Small protocols between the core and the adapters."""
