"""How far the numbers of a column may differ and still count as equal."""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from lakehouse_backfill.domain.value import Value


class Tolerance(Value):
    """Values of a column are equal up to `limit`.

    An absolute one is in the column's own unit; a relative one is a share of the greater of both
    values, without their signs.
    """

    column: str
    limit: Decimal = Field(ge=0, allow_inf_nan=False)
    is_relative: bool = False
