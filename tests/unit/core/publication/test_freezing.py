"""Publish windows: hours of each day in UTC, also across midnight."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lakehouse_backfill.core.publication import publication
from lakehouse_backfill.domain.manifest import PublishWindow

CASES = [
    ("09:00", "17:00", "08:59", "09:00"),
    ("09:00", "17:00", "09:00", None),
    ("09:00", "17:00", "16:59", None),
    ("09:00", "17:00", "17:00", "tomorrow 09:00"),
    ("22:00", "04:00", "23:30", None),
    ("22:00", "04:00", "00:00", None),
    ("22:00", "04:00", "03:59", None),
    ("22:00", "04:00", "04:00", "22:00"),
    ("22:00", "04:00", "21:59", "22:00"),
    ("06:00", "06:00", "05:59", None),
]


@pytest.mark.req("U11")
@pytest.mark.parametrize(("first", "last", "now", "opens"), CASES)
def test_a_window_says_when_it_opens_next(
    first: str, last: str, now: str, opens: str | None
) -> None:
    window = PublishWindow.model_validate({"from": first, "to": last})
    found = publication.next_opening(window, _at(2, now))
    wanted = None if opens is None else _at(3 if "tomorrow" in opens else 2, opens[-5:])
    assert found == wanted


def _at(day: int, clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-0{day}T{clock}").replace(tzinfo=timezone.utc)
