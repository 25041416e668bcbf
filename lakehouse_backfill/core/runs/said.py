"""What people write about themselves and their reasons, before it is kept for ever."""

from __future__ import annotations

import unicodedata

#: Characters of a reason: it stands in the log, on the evidence page and in snapshots.
MAX_REASON_CHARACTERS = 2_000
#: Control characters move the cursor of whoever reads the log; lone surrogates are no text at all.
_REFUSED = ("Cc", "Cs")


def name_fault(name: str) -> str | None:
    """Say what is wrong with the name of a person; None: nothing."""
    stripped = name.strip()
    if not stripped:
        return "is empty, so nobody would have acted"
    return "holds a control character" if _has_refused_character(stripped) else None


def reason_fault(reason: str) -> str | None:
    """Say what is wrong with a reason; None: nothing. Lines and tabs are fine."""
    if len(reason) > MAX_REASON_CHARACTERS:
        return f"is {len(reason):,} characters long, and {MAX_REASON_CHARACTERS:,} are the most"
    return "holds a control character" if _has_refused_character(reason, but="\n\t") else None


def _has_refused_character(text: str, but: str = "") -> bool:
    return any(unicodedata.category(letter) in _REFUSED for letter in text if letter not in but)
