"""Texts by which partitions are named."""
