"""Declarations in YAML: run manifests, contracts, profiles, and the files of a new project."""
