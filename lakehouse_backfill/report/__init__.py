"""The evidence page."""
