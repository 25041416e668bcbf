"""The control tables: append logs with one conditional commit."""
