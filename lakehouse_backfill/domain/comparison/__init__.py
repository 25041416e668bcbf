"""Comparisons of two states as values: diffs, causes of changed rows, checksums."""
