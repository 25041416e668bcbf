"""Picks the adapters of a project; imports them on use."""
