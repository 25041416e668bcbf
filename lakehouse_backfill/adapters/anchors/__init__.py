"""Anchors: places outside the lake that keep heads of logs."""
