"""The table of raw responses: of one source only."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.sources.api.ledger import ResponseLedger
from lakehouse_backfill.adapters.sources.formats import exact_json
from lakehouse_backfill.domain.sources.landings import LandingRequest, LandingState
from lakehouse_backfill.errors import Unsupported


def test_a_table_of_another_source_takes_no_responses() -> None:
    landing = LandingState(
        landing_id="ld-1", source="orders", request=LandingRequest(),
        started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    )  # fmt: skip
    other = landing.model_copy(update={"source": "other"})
    tables: Any = SimpleNamespace(ensure=lambda _: None, state=lambda _: other)
    declared: Any = SimpleNamespace(table="bronze.orders_responses")
    with pytest.raises(Unsupported, match="is a table of the source other"):
        ResponseLedger(tables, declared).open(landing)


def test_numbers_of_a_record_keep_their_digits() -> None:
    record = {"a": Decimal("1.50"), "b": [Decimal("1E+2"), 2**63], "c": '"1.5"', "d": "é"}
    assert (
        exact_json(record)
        == '{"a": 1.50, "b": [1E+2, 9223372036854775808], "c": "\\"1.5\\"", "d": "é"}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        exact_json({"a": float("nan")})
