"""Event stores as they are declared in files."""
