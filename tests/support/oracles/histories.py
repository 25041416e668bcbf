"""What a history of events delivers, worked out event by event in plain Python from its page.

Written from the descriptions of the parameters, not from the code: sums of whole numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakehouse_backfill.histories import EventHistory
from tests.support.oracles.row_hash import xxh64

DAY_US = 86_400_000_000
KINDS, CURRENCIES = ("opened", "changed", "paid", "closed"), ("EUR", "USD", "GBP")


def drawn(seed: int, purpose: int, number: int) -> int:
    """The hash of three longs, each the seed of the next, as a signed number."""
    found = 42
    for value in (seed, purpose, number):
        found = xxh64((value % 2**64).to_bytes(8, "little"), found)
    return found - 2**64 if found >= 2**63 else found


def delivered(history: EventHistory) -> Iterator[dict[str, Any]]:
    """Give the rows of all events, those of one event together; instants in microseconds."""

    def draw(purpose: int, below: int, number: int) -> int:
        return drawn(history.seed, purpose, number) % below

    def happens(purpose: int, share: float, number: int) -> bool:
        return draw(purpose, 1_000_000, number) < round(share * 1_000_000)

    start = (history.start.toordinal() - 719_163) * DAY_US
    step = history.days * DAY_US // history.events
    hours = [(drawn(history.seed, 5, gap) % 2**64 >> 1) % (history.days * 24)
             for gap in range(history.gaps)]  # fmt: skip
    gaps = [range(hour, hour + history.gap_hours) for hour in hours]
    for number in range(history.events):
        at = start + number * step + draw(1, step, number)
        hour, day = (at - start) // (DAY_US // 24), (at - start) // DAY_US
        if happens(4, history.lost, number) or any(hour in gap for gap in gaps):
            continue
        account = number % history.accounts
        if happens(6, history.late, number):
            delay = DAY_US + draw(7, history.late_days * DAY_US, number)
        elif happens(8, history.tangled, number):
            delay = draw(9, history.tangle_seconds * 1_000_000, number)
        else:
            delay = draw(10, 1_000_000, number)
        skew = history.skew_seconds * 1_000_000
        off = draw(14, 2 * skew + 1, account) - skew if happens(13, history.skewed, account) else 0
        version = 1 + sum(day >= each for each in history.schema_steps)
        amount = draw(3, 100_000, number) + 1
        row = {
            "event_id": number, "account": account,
            "sequence_num": number // history.accounts + 1, "kind": KINDS[draw(2, 4, number)],
            "amount_cents": amount if version < 3 else None,
            "amount_millis": amount * 10 if version > 2 else None,
            "currency": CURRENCIES[draw(15, 3, number)] if version > 1 else None,
            "schema_version": version, "occurred_at": at + off, "arrived_at": at + delay, "copy": 1,
        }  # fmt: skip
        yield row
        if happens(11, history.twice, number):
            again = 1 + draw(12, history.again_seconds * 1_000_000, number)
            yield row | {"arrived_at": at + delay + again, "copy": 2}
