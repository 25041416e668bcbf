"""Compute chunks into the shadow table, and judge them."""
