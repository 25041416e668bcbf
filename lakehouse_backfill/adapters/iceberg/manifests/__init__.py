"""Manifests: which files a snapshot lists, in which partitions, and which deletes apply to them."""
