"""Landings: a source becomes rows of a raw table, each exactly once."""
