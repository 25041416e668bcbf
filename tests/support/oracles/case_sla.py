"""The case study's rules in plain Python, event by event, written from docs/case-study.md alone.

`counted_from="utc"` gives what release 2.4.1 made of them: only rule 6 begins with the UTC date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
Event = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """A jurisdiction: its zone, its working days until a deadline, and which days it works."""

    zone: ZoneInfo
    sla_days: int
    working: frozenset[date]

    def after(self, start: date, count: int) -> date:
        """Walk to the `count`-th working day after a day."""
        day = start
        while count:
            day += DAY
            count -= day in self.working
        return day


def read_rules(calendar: Iterable[dict[str, Any]]) -> dict[str, Rules]:
    """Read the rows of a calendar."""
    rows = list(calendar)
    working: dict[str, set[date]] = {row["jurisdiction"]: set() for row in rows}
    for row in rows:
        if row["is_working"]:
            working[row["jurisdiction"]].add(row["day"])
    return {
        row["jurisdiction"]: Rules(
            ZoneInfo(row["zone"]), row["sla_days"], frozenset(working[row["jurisdiction"]])
        )
        for row in {row["jurisdiction"]: row for row in rows}.values()
    }


@dataclass
class Episode:
    """From an opening or reopening to the next (rule 3)."""

    start: date
    counted_from: date
    events: list[Event]


def case_days(
    events: Iterable[Event],
    calendar: Iterable[dict[str, Any]],
    first: date,
    stop: date,
    counted_from: str = "local",
) -> Iterator[dict[str, Any]]:
    """Give the row of each day from first to stop of each case."""
    rules = read_rules(calendar)
    cases: dict[int, dict[int, Event]] = {}
    for event in events:  # rule 1
        cases.setdefault(event["case_id"], {})[event["sequence_num"]] = event
    for case, by_number in cases.items():
        ordered = [by_number[number] for number in sorted(by_number)]
        here = rules[ordered[0]["jurisdiction"]]
        episodes = list(_episodes(ordered, here, counted_from))
        for episode, following in zip(episodes, [*episodes[1:], None], strict=False):
            end = stop - DAY if following is None else following.start - DAY
            for row in _days(episode, here, min(end, stop - DAY)):
                if row["as_of"] >= first:
                    yield {"case_id": case, "jurisdiction": ordered[0]["jurisdiction"], **row}


def _local_day(event: Event, here: Rules) -> date:
    day: date = event["occurred_at"].astimezone(here.zone).date()
    return day


def _episodes(events: list[Event], here: Rules, counted_from: str) -> Iterator[Episode]:
    found: Episode | None = None
    for event in events:
        if event["kind"] in ("opened", "reopened"):
            if found:
                yield found
            start = _local_day(event, here)
            utc = event["occurred_at"].astimezone(timezone.utc).date()
            found = Episode(start, utc if counted_from == "utc" else start, [])
        elif found:
            found.events.append(event)
    if found:
        yield found


def _days(episode: Episode, here: Rules, last: date) -> Iterator[dict[str, Any]]:
    decided = None
    if any(event["kind"] == "decided" for event in episode.events):  # rule 4
        effective = [
            event["effective_on"]
            for event in episode.events
            if event["kind"] in ("decided", "amended")
        ]
        decided = max(effective[-1], episode.start)
        last = min(last, decided)
    dated = [(_local_day(event, here), event["kind"]) for event in episode.events]
    paused_days, day = 0, episode.start
    while day <= last:
        so_far = [kind for on, kind in dated if on <= day]
        pauses = [kind for kind in so_far if kind in ("paused", "resumed")]
        is_paused = pauses[-1:] == ["paused"]
        paused_days += is_paused and day in here.working  # rule 5
        is_escalated = "escalated" in so_far
        longer = paused_days + (5 if is_escalated else 0)
        due = here.after(episode.counted_from, here.sla_days + longer)  # rule 6
        midnight = datetime(due.year, due.month, due.day, tzinfo=here.zone) + DAY
        yield {
            "as_of": day,
            "state": "decided" if day == decided else "paused" if is_paused else "open",
            "opened_on": episode.start,
            "due_on": due,
            "due_at": midnight.astimezone(timezone.utc),  # rule 7
            "paused_days": paused_days,
            "age_days": (day - episode.start).days,
            "is_escalated": is_escalated,
            "decided_on": decided if day == decided else None,
            "is_breached": day > due,  # rule 8
        }
        day += DAY
