"""Decisions of people: approve, accept, reject, cancel, waive."""
