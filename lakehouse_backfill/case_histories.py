"""Events of the case study: what happened to so many regulatory cases, computed from numbers.

A case follows from its number and the seed alone, by the same formulas in this process and in
Spark, so that case 17 is the same one among a thousand cases as among a billion. The rules that are
read into the events are those of docs/case-study.md; this module only says what happened.

    cases = CaseHistory(cases=2_000)
    cases.events()            # Arrow, in this process; or cases.events_frame(spark)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.histories import ArrayFormulas, SparkFormulas

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Name, time zone, hours of standard time ahead of UTC, working days until the deadline.
JURISDICTIONS: Final = (
    ("US-NY", "America/New_York", -5, 20),
    ("US-CA", "America/Los_Angeles", -8, 15),
    ("BR-SP", "America/Sao_Paulo", -3, 15),
    ("GB", "Europe/London", 0, 20),
    ("DE", "Europe/Berlin", 1, 30),
)
#: First day of the cases; the first of the year that is published; the day after its last.
HISTORY_START, YEAR_START, YEAR_STOP = date(2024, 9, 1), date(2025, 1, 1), date(2026, 1, 1)
#: First day of the warm-up, and the day on which the events are read: later ones are not known.
WARM_UP_START, KNOWN_UNTIL = date(2024, 12, 1), date(2026, 2, 15)
#: The tutorial and the disputed cases need so many.
LEAST_CASES = 1_000

_SLOTS = (
    "opened", "paused", "resumed", "escalated", "decided", "amended", "reopened", "decided",
)  # fmt: skip
_DAY, _HOUR = 86_400, 3_600
_US = 1_000_000
_EPOCH = date(1970, 1, 1)
#: What each hash decides; apart from those of `EventHistory`.
(_WHERE, _OPENED_DAY, _OPENED_AT, _LENGTH, _PAUSES, _PAUSED_AT, _RESUMES, _RESUMED_AT, _ESCALATES,
 _ESCALATED_AT, _DECIDES, _BACK, _REOPENS, _REOPENED_DAY, _REOPENED_AT, _LENGTH_2, _BACK_2, _AMENDS,
 _AMENDED_AT, _MOVED, _DELAYED, _DELAY, _TWICE) = range(101, 124)  # fmt: skip


@dataclass(frozen=True)
class CaseHistory:
    """Regulatory cases opened from September 2024 to December 2025, and what happened to them."""

    cases: int
    seed: int = 2025

    def __post_init__(self) -> None:
        """Refuse a number of cases that has no disputed ones among them; raise ConfigError."""
        if self.cases < LEAST_CASES:
            raise ConfigError(
                f"the case study cannot have {self.cases} cases",
                fix=f"the disputed cases are among the first {LEAST_CASES:,}; take at least these",
                field="cases",
            )

    def events(self) -> pa.Table:
        """Return all events as they were recorded, duplicates included.

        Columns: `event_id`, `case_id`, `sequence_num`, `jurisdiction`, `kind`, `occurred_at`,
        `effective_on`, `recorded_at`.
        """
        import pyarrow as pa

        return pa.concat_tables(list(self._arrays.event_tables()))

    def carried(self) -> pa.Table:
        """Return what open cases need: `month`, and each earlier event of a case open at its start.

        Open means: no decision is recorded by then that no recorded reopening follows.
        """
        import pyarrow as pa

        made = self._arrays
        return pa.concat_tables([
            table for month in carry_months() for table in made.event_tables(carried_to=month)
        ])  # fmt: skip

    def census(self) -> pa.Table:
        """Return a row for each day of 2025 and each case that was active on it.

        This is the truth of the generator, not read from the events: `as_of`, `case_id`,
        `jurisdiction`.
        """
        import numpy as np
        import pyarrow as pa

        made = self._arrays
        first, stop = _days(YEAR_START), _days(YEAR_STOP)
        tables = []
        for begin, end, exists in made.active_spans():
            begin, end = np.maximum(begin, first), np.minimum(end, stop - 1)
            days = np.where(exists, np.maximum(end - begin + 1, 0), 0)
            number = np.repeat(made.number, days)
            offset = np.arange(len(number)) - np.repeat(np.cumsum(days) - days, days)
            tables.append(pa.table({
                "as_of": _dates(np.repeat(begin, days) + offset),
                "case_id": pa.array(number),
                "jurisdiction": _names()[np.repeat(made.where, days)],
            }))  # fmt: skip
        return pa.concat_tables(tables).sort_by([("as_of", "ascending"), ("case_id", "ascending")])

    def events_frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows of `events` in Spark; nothing is computed yet."""
        return self._frame(spark).select(*_EVENT_COLUMNS)

    def carried_frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows of `carried` in Spark; nothing is computed yet."""
        from pyspark.sql import functions as F

        months = spark.createDataFrame([(month,) for month in carry_months()], "month date")
        rows = self._frame(spark).crossJoin(F.broadcast(months))
        start = F.unix_micros(F.col("month").cast("timestamp"))
        known = {name: F.col(name) < start for name in ("decided_us", "reopened_us", "decided2_us")}
        closed = (known["decided_us"] & ~known["reopened_us"]) | known["decided2_us"]
        earlier = F.unix_micros("recorded_at") < start
        return rows.where(earlier & ~closed).select("month", *_EVENT_COLUMNS)

    def census_frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows of `census` in Spark; nothing is computed yet."""
        from pyspark.sql import functions as F

        made, formulas = self._columns(spark)
        spans = F.array(*(
            F.when(exists, F.struct(
                F.greatest(begin, F.lit(_days(YEAR_START))).alias("begin"),
                F.least(end, F.lit(_days(YEAR_STOP) - 1)).alias("end"),
            ))
            for begin, end, exists in made.active_spans()
        ))  # fmt: skip
        name = _name_column(made.where)
        spread: DataFrame = formulas.frame.select("id", name, F.explode(spans).alias("span"))
        spread = spread.where("span.begin <= span.end")
        return spread.select(
            F.explode(F.sequence("span.begin", "span.end")).alias("day"), "id", "jurisdiction"
        ).select(
            F.date_from_unix_date(F.col("day").cast("int")).alias("as_of"),
            F.col("id").alias("case_id"),
            "jurisdiction",
        )

    @cached_property
    def _arrays(self) -> _Case:
        import numpy as np

        return _Case(ArrayFormulas(self.seed), np.arange(self.cases, dtype=np.int64))

    def _columns(self, spark: SparkSession) -> tuple[_Case, Any]:
        from pyspark.sql import functions as F

        formulas = SparkFormulas(self.seed, spark.range(self.cases))
        return _Case(formulas, F.col("id")), formulas

    def _frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        made, formulas = self._columns(spark)
        far = F.lit(_days(date(9999, 1, 1)) * _DAY * _US)

        def event(slot: int, recorded: Any, exists: Any) -> Any:
            effective = made.effective(slot)
            return F.when(exists, F.struct(
                made.event_id(slot).alias("event_id"),
                F.col("id").alias("case_id"),
                made.sequence(slot).cast("int").alias("sequence_num"),
                F.lit(_SLOTS[slot]).alias("kind"),
                F.timestamp_micros(made.occurred_us(slot)).alias("occurred_at"),
                (F.lit(None).cast("date") if effective is None
                 else F.date_from_unix_date(effective.cast("int"))).alias("effective_on"),
                F.timestamp_micros(recorded).alias("recorded_at"),
            ))  # fmt: skip

        events = F.array(*(event(*copy) for copy in made.copies()))
        late = {
            name: F.when(made.exists(slot), made.recorded_us(slot)).otherwise(far).alias(name)
            for name, slot in (("decided_us", 4), ("reopened_us", 6), ("decided2_us", 7))
        }
        name = _name_column(made.where)
        rows: DataFrame = formulas.frame.select(name, *late.values(), F.explode(events).alias("e"))
        return rows.where("e IS NOT NULL").select("e.*", "jurisdiction", *late)


_EVENT_COLUMNS = (
    "event_id", "case_id", "sequence_num", "jurisdiction", "kind", "occurred_at", "effective_on",
    "recorded_at",
)  # fmt: skip


def carry_months() -> tuple[date, ...]:
    """Return the first days of December 2024 and of each month of 2025."""
    return (WARM_UP_START, *(date(2025, month, 1) for month in range(1, 13)))


class _Case:
    """What follows from the numbers of cases, as columns of an engine; times in microseconds.

    Local days are those of standard time: cases open between 8 and 22 o'clock, so that they are
    the same in summer.
    """

    def __init__(self, engine: Any, number: Any) -> None:
        self.engine, self.number = engine, number

    def _hash(self, purpose: int, below: int) -> Any:
        return self.engine.below(purpose, self.number, below)

    def _is(self, purpose: int, percent: int) -> Any:
        return self._hash(purpose, 100) < percent

    def _day_of(self, us: Any) -> Any:
        return self.engine.quotient(us + self.ahead_us, _DAY * _US)

    def _at_least(self, one: Any, other: Any) -> Any:
        return self.engine.choose(one < other, other, one)

    @cached_property
    def where(self) -> Any:
        return self.engine.keep("where", lambda: self._hash(_WHERE, len(JURISDICTIONS)))

    @cached_property
    def ahead_us(self) -> Any:
        return self.engine.keep("ahead_us", self._ahead_us)

    def _ahead_us(self) -> Any:
        found = self.number * 0
        for place, (_, _, hours, _) in enumerate(JURISDICTIONS):
            found = self.engine.choose(self.where == place, found + hours * _HOUR * _US, found)
        return found

    @cached_property
    def opened_day(self) -> Any:
        return self._hash(_OPENED_DAY, (YEAR_STOP - HISTORY_START).days) + _days(HISTORY_START)

    def _open_hours(self, day: Any, purpose: int) -> Any:
        second = self._hash(purpose, 14 * _HOUR) + 8 * _HOUR
        return (day * _DAY + second) * _US - self.ahead_us

    @cached_property
    def length_s(self) -> Any:
        return self._hash(_LENGTH, 56 * _DAY) + 4 * _DAY

    def _part(self, purpose: int, first: int, stop: int) -> Any:
        """Return so many seconds after the opening: a share of its length, in thousandths."""
        return self.engine.quotient(self.length_s, 1_000) * (
            self._hash(purpose, stop - first) + first
        )

    @cached_property
    def reopened_day(self) -> Any:
        return self.engine.keep(
            "reopened_day",
            lambda: self._day_of(self.occurred_us(4)) + 1 + self._hash(_REOPENED_DAY, 20),
        )

    def occurred_us(self, slot: int) -> Any:
        """Return when the event of a slot occurs, if it does."""
        return self.engine.keep(f"occurred_us_{slot}", lambda: self._occurred_us(slot))

    def _occurred_us(self, slot: int) -> Any:
        opened = self._open_hours(self.opened_day, _OPENED_AT)
        if slot == 0:
            return opened
        if slot in (6, 7):
            reopened = self._open_hours(self.reopened_day, _REOPENED_AT)
            again = (self._hash(_LENGTH_2, 56 * _DAY) + 4 * _DAY) * _US
            return reopened + again if slot == 7 else reopened
        after = {
            1: lambda: self._part(_PAUSED_AT, 50, 300),
            2: lambda: self._part(_RESUMED_AT, 350, 600),
            3: lambda: self._part(_ESCALATED_AT, 620, 900),
            4: lambda: self.length_s,
            5: lambda: self.length_s + 5 * _DAY + self._hash(_AMENDED_AT, 25 * _DAY),
        }[slot]()
        return opened + after * _US

    @cached_property
    def _exists(self) -> tuple[Any, ...]:
        pauses = self._is(_PAUSES, 30)
        decides = self._is(_DECIDES, 98)
        reopens = decides & self._is(_REOPENS, 8)
        opened = self.number >= 0
        wanted = (
            opened, pauses, pauses & self._is(_RESUMES, 90), self._is(_ESCALATES, 20), decides,
            decides & ~reopens & self._is(_AMENDS, 10), reopens, reopens,
        )  # fmt: skip
        known = _days(KNOWN_UNTIL) * _DAY * _US

        def exists(slot: int) -> Any:
            return wanted[slot] & (self.recorded_us(slot) < known)

        keep = self.engine.keep
        return tuple(keep(f"exists_{slot}", partial(exists, slot)) for slot in range(len(wanted)))

    def exists(self, slot: int) -> Any:
        """Return whether the event of a slot happened and is recorded."""
        return self._exists[slot]

    def recorded_us(self, slot: int) -> Any:
        """Return when an event is recorded: at once, or three in a hundred up to 5 days later."""
        return self.engine.keep(f"recorded_us_{slot}", lambda: self._recorded_us(slot))

    def _recorded_us(self, slot: int) -> Any:
        prompt, late = self._hash(_DELAY + 100 * slot, 60), self._hash(_DELAY, 4 * _DAY) + _DAY
        delay = self.engine.choose(self._is(_DELAYED + 100 * slot, 3), late, prompt)
        return self.occurred_us(slot) + delay * _US

    def effective(self, slot: int) -> Any:
        """Return the effective day of a decision, or of its amendment; None for other events."""
        if slot not in (4, 5, 7):
            return None
        return self.engine.keep(f"effective_{slot}", lambda: self._effective(slot))

    def _effective(self, slot: int) -> Any:
        if slot == 7:
            day = self._day_of(self.occurred_us(7)) - self._hash(_BACK_2, 4)
            return self._at_least(day, self.reopened_day)
        decided = self._day_of(self.occurred_us(4)) - self._hash(_BACK, 4)
        decided = self._at_least(decided, self.opened_day)
        if slot == 4:
            return decided
        return self._at_least(decided + self._hash(_MOVED, 7) - 3, self.opened_day)

    def event_id(self, slot: int) -> Any:
        return self.number * 16 + slot

    def sequence(self, slot: int) -> Any:
        """Count the events of the case up to this one; their slots are in order of time."""
        zero = self.number * 0
        return sum(
            (self.engine.choose(self.exists(one), zero + 1, zero) for one in range(slot)), zero + 1
        )

    def copies(self) -> Iterator[tuple[int, Any, Any]]:
        """Give slot, time of record and existence of each row; one in a hundred comes twice."""
        for slot in range(len(_SLOTS)):
            recorded, exists = self.recorded_us(slot), self.exists(slot)
            yield slot, recorded, exists
            yield slot, recorded + _HOUR * _US, exists & self._is(_TWICE + 100 * slot, 1)

    def active_spans(self) -> Iterator[tuple[Any, Any, Any]]:
        """Give first and last active day of the two episodes, and whether there is one."""
        open_end = self.number * 0 + _days(YEAR_STOP)
        choose = self.engine.choose
        end = choose(self.exists(4), self.effective(4), open_end)
        end = choose(self.exists(5), self.effective(5), end)
        yield self.opened_day, end, self.exists(0)
        yield (
            self.reopened_day,
            choose(self.exists(7), self.effective(7), open_end),
            self.exists(6),
        )

    def event_tables(self, carried_to: date | None = None) -> Iterator[pa.Table]:
        """Give the events of arrays, one table for each slot and copy."""
        import numpy as np
        import pyarrow as pa

        start = None if carried_to is None else _days(carried_to) * _DAY * _US
        instants = pa.timestamp("us", tz="UTC")
        for slot, recorded, exists in self.copies():
            mask = exists if start is None else exists & (recorded < start) & ~self._closed(start)
            rows = int(mask.sum())
            effective = self.effective(slot)
            columns = {
                "event_id": pa.array(self.event_id(slot)[mask]),
                "case_id": pa.array(self.number[mask]),
                "sequence_num": pa.array(self.sequence(slot)[mask].astype(np.int32)),
                "jurisdiction": _names()[self.where[mask]],
                "kind": pa.array([_SLOTS[slot]] * rows, type=pa.string()),
                "occurred_at": pa.array(self.occurred_us(slot)[mask]).cast(instants),
                "effective_on": (
                    pa.nulls(rows, pa.date32()) if effective is None else _dates(effective[mask])
                ),
                "recorded_at": pa.array(recorded[mask]).cast(instants),
            }
            if carried_to is not None:
                columns = {"month": pa.array([carried_to] * rows, type=pa.date32()), **columns}
            yield pa.table(columns)

    def _closed(self, start: int) -> Any:
        known = {slot: self.exists(slot) & (self.recorded_us(slot) < start) for slot in (4, 6, 7)}
        return (known[4] & ~known[6]) | known[7]


def _names() -> Any:
    import numpy as np

    return np.array([name for name, *_ in JURISDICTIONS])


def _name_column(where: Any) -> Any:
    from pyspark.sql import functions as F

    names = F.array(*(F.lit(name) for name, *_ in JURISDICTIONS))
    return F.element_at(names, (where + 1).cast("int")).alias("jurisdiction")


def _dates(days: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    return pa.array(days.astype(np.int32), type=pa.int32()).cast(pa.date32())


def _days(day: date) -> int:
    return (day - _EPOCH).days


def instant(day: date) -> datetime:
    """Return the start of a day in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
