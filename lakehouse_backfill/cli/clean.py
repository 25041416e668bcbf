"""Text for terminals, whatever it holds; loads nothing, because every error needs it."""

from __future__ import annotations

from typing import Any


def clean_text(value: Any) -> str:
    """Give text without control characters: data must not move somebody's cursor."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1]
        for letter in str(value)
    )
