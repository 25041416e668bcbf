"""Declared sources, and what a landing has done so far."""
