"""Cascades: one plan restates a product and everything that is computed from it."""
