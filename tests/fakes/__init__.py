"""In-memory stand-ins of the ports."""
