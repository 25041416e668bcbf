"""Files in a folder or bucket."""
