"""Commits on a target: adopt, revert, conflicts, snapshots."""
