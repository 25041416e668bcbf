"""Readers of what lies outside the lake; one folder for each kind of source."""
