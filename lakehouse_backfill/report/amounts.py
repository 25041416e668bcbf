"""Totals as exact numbers: the lake gives decimals as text, so that no digit is lost."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

#: Larger ones are shown as they are written; a picture or a percentage of them means nothing.
_MAX_AMOUNT = Decimal("1e100")


def parse_amount(value: float | str | None) -> Decimal | None:
    """Give a value as a number; None where there is none, or text that is no finite number."""
    if value is None:
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found) < _MAX_AMOUNT else None


def amount_change(old: float | str | None, new: float | str | None) -> Decimal | None:
    """Give new less old; a missing side of an additive total counts as zero, two give None."""
    before, after = parse_amount(old), parse_amount(new)
    if before is None and after is None:
        return None
    return (after or Decimal(0)) - (before or Decimal(0))
