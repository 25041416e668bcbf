"""Sets this clone up: see `tools/setup.py`."""
