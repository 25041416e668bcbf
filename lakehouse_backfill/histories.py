"""Histories of events with known defects, for tests: late, twice, out of order, lost, skewed.

An `EventHistory` is made of its parameters alone: each row is computed from its number and the
seed, by the same formulas in Spark and in this process, so that a billion rows need no memory of
the driver. `truth` says what happened, and what was done to it.

    history = EventHistory(events=100_000, seed=7)
    history.frame(spark)      # as it was delivered; or history.batches(), history.table()
    history.truth().days[0]   # what a correct job makes of it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DayTruth", "EventHistory", "HistoryTruth"]

_KINDS = ("opened", "changed", "paid", "closed")
_CURRENCIES = ("EUR", "USD", "GBP")
_MILLION, _SECOND_US, _DAY_US = 1_000_000, 1_000_000, 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: What each hash decides. A number is never given to another one: histories would change.
(_AT, _KIND, _AMOUNT, _LOST, _GAP, _LATE, _LATENESS, _TANGLED, _TANGLE, _DELAY, _TWICE, _AGAIN,
 _SKEWED, _SKEW, _CURRENCY) = range(1, 16)  # fmt: skip


@dataclass(frozen=True)
class DayTruth:
    """What happened on a day, and what was done to it; `day` is that of the true time, in UTC.

    `delivered` events have at least one row, of `amount_cents` in sum; `lost` ones have none.
    Of those delivered, `late` arrive a day later or more, `twice` have a second row, `moved` carry
    an `occurred_at` of another day, as their clock is wrong, and `overtaken` arrive after the next
    event of their account.
    """

    day: date
    events: int = 0
    delivered: int = 0
    amount_cents: int = 0
    lost: int = 0
    late: int = 0
    twice: int = 0
    moved: int = 0
    overtaken: int = 0


@dataclass(frozen=True)
class HistoryTruth:
    """The truth of a history, day by day.

    `arrivals` counts rows by the day on which they arrive and that of their `occurred_at`: what a
    live job gets each day, and for which days. `gaps` are the spans of which nothing arrives.
    """

    days: tuple[DayTruth, ...]
    arrivals: Mapping[tuple[date, date], int]
    gaps: tuple[tuple[datetime, datetime], ...]

    @property
    def total(self) -> DayTruth:
        """All days together, under the first one's name."""
        names = [one.name for one in fields(DayTruth) if one.name != "day"]
        sums = {name: sum(getattr(day, name) for day in self.days) for name in names}
        return DayTruth(day=self.days[0].day, **sums)


@dataclass(frozen=True)
class EventHistory:
    """Events of accounts, evenly over days; shares are of events, from 0 to 1.

    Each account's `sequence_num` counts from 1 without a hole, in the order in which its events
    happened. `gaps` spans of `gap_hours` lose all of their events, `lost` others. Accounts of the
    share `skewed` have a clock that is wrong by up to `skew_seconds`. From the days of
    `schema_steps` on, rows have the next schema: the first step brings `currency`, the second one
    `amount_millis` in place of `amount_cents`.
    """

    events: int
    seed: int = 0
    start: date = date(2024, 1, 1)
    days: int = 30
    accounts: int = 1_000
    late: float = 0.02
    late_days: int = 3
    twice: float = 0.01
    tangled: float = 0.05
    tangle_seconds: int = 900
    lost: float = 0.005
    gaps: int = 1
    gap_hours: int = 2
    skewed: float = 0.02
    skew_seconds: int = 7_200
    schema_steps: tuple[int, ...] = (10, 20)
    #: A second row arrives up to so much later.
    again_seconds: int = field(default=21_600)

    def __post_init__(self) -> None:
        """Refuse what no rows can be computed of.

        Raises ConfigError, which names the parameter.
        """
        span_us = self.days * _DAY_US
        least = {"days": 1, "accounts": 1, "late_days": 1, "tangle_seconds": 1, "again_seconds": 1}
        least |= {"gaps": 0, "gap_hours": 0, "skew_seconds": 0}
        wrong = [name for name, lowest in least.items() if getattr(self, name) < lowest]
        shares = ("late", "twice", "tangled", "lost", "skewed")
        wrong += [name for name in shares if not 0 <= getattr(self, name) <= 1]
        wrong += ["seed"] if not -(2**63) <= self.seed < 2**63 else []
        wrong += ["events"] if not 1 <= self.events <= span_us else []
        wrong += ["schema_steps"] if len(self.schema_steps) > 2 else []
        if wrong:
            raise ConfigError(
                f"a history of events cannot have {wrong[0]} {getattr(self, wrong[0])}",
                fix="shares are from 0 to 1, counts and lengths not negative, days, accounts and "
                "delays at least 1; a seed has 64 bits, and a microsecond has one event",
                field=wrong[0],
            )

    def frame(self, spark: SparkSession, partitions: int | None = None) -> DataFrame:
        """Return the rows as they were delivered; nothing is computed yet.

        Its columns: `event_id`, `account`, `sequence_num`, `kind`, `amount_cents`,
        `amount_millis`, `currency`, `schema_version`, `occurred_at`, `arrived_at`, `copy`.
        """
        from pyspark.sql import functions as F

        numbers = spark.range(0, self.events, 1, partitions)
        engine = SparkFormulas(self.seed)
        made = _Event(self, engine, F.col("id"))
        delivered = numbers.where(~made.is_lost)
        one, two = F.array(F.lit(1)), F.array(F.lit(1), F.lit(2))
        copies = F.explode(F.when(made.is_twice, two).otherwise(one))
        rows = made.rows(F.col("copy"))
        texts = {
            "kind": F.element_at(F.array(*map(F.lit, _KINDS)), (rows["kind"] + 1).cast("int")),
            "currency": F.when(
                rows["schema_version"] > 1,
                F.element_at(F.array(*map(F.lit, _CURRENCIES)), (rows["currency"] + 1).cast("int")),
            ),
            "amount_cents": F.when(rows["schema_version"] < 3, made.amount),
            "amount_millis": F.when(rows["schema_version"] > 2, made.amount * 10),
            "occurred_at": F.timestamp_micros(rows["occurred_at"]),
            "arrived_at": F.timestamp_micros(rows["arrived_at"]),
            "schema_version": rows["schema_version"].cast("int"),
        }
        columns = [value.alias(name) for name, value in (rows | texts).items()]
        return delivered.withColumn("copy", copies).select(*columns)

    def batches(self, rows: int = _MILLION) -> Iterator[pa.Table]:
        """Give the rows as they were delivered, of so many events at a time."""
        for first in range(0, self.events, rows):
            yield self._batch(first, min(first + rows, self.events))

    def table(self) -> pa.Table:
        """Return all rows as one table, in the order in which they arrive."""
        import pyarrow as pa

        return pa.concat_tables(self.batches()).sort_by(
            [("arrived_at", "ascending"), ("event_id", "ascending"), ("copy", "ascending")]
        )

    def truth(self, rows: int = _MILLION) -> HistoryTruth:
        """Return what happened; it is worked out from the events, of so many at a time."""
        days = [Counter[str]() for _ in range(self.days)]
        arrivals = Counter[tuple[date, date]]()
        for first in range(0, self.events, rows):
            made = self._events(first, min(first + rows, self.events))
            self._add_days(days, made)
            self._add_arrivals(arrivals, made)
        named = tuple(
            DayTruth(day=self.start + timedelta(days=number), **counts)
            for number, counts in enumerate(days)
        )
        spans = tuple((_instant(first), _instant(stop)) for first, stop in self.gap_spans_us)
        return HistoryTruth(days=named, arrivals=dict(sorted(arrivals.items())), gaps=spans)

    @cached_property
    def gap_spans_us(self) -> tuple[tuple[int, int], ...]:
        """The spans of which nothing arrives, in microseconds since 1970."""
        hours = [_hash_one(self.seed, _GAP, number) for number in range(self.gaps)]
        firsts = sorted(self.start_us + hour % (self.days * 24) * _DAY_US // 24 for hour in hours)
        return tuple((first, first + self.gap_hours * _DAY_US // 24) for first in firsts)

    @property
    def start_us(self) -> int:
        """The first instant, in microseconds since 1970."""
        return (self.start - _EPOCH.date()).days * _DAY_US

    def _events(self, first: int, stop: int) -> _Event:
        import numpy as np

        return _Event(self, ArrayFormulas(self.seed), np.arange(first, stop, dtype=np.int64))

    def _batch(self, first: int, stop: int) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        made = self._events(first, stop)
        kept, twice = ~made.is_lost, ~made.is_lost & made.is_twice
        parts = []
        for copy, mask in ((1, kept), (2, twice)):
            rows = {name: np.asarray(one) for name, one in made.rows(copy).items()}
            whole = {
                name: np.broadcast_to(one, made.number.shape)[mask] for name, one in rows.items()
            }
            parts.append(_arrow_table(whole, made.amount[mask]))
        return pa.concat_tables(parts)

    def _add_days(self, days: list[Counter[str]], made: _Event) -> None:
        import numpy as np

        number = made.day
        kept = ~made.is_lost
        following = _Event(self, made.engine, made.number + self.accounts)
        is_next = kept & (following.number < self.events) & ~following.is_lost
        facts = {
            "events": np.ones_like(number), "delivered": kept, "lost": ~kept,
            "amount_cents": np.where(kept, made.amount, 0), "late": kept & made.is_late,
            "twice": kept & made.is_twice, "moved": kept & (made.recorded_day != number),
            "overtaken": is_next & (made.arrived_us > following.arrived_us),
        }  # fmt: skip
        for name, values in facts.items():
            sums = np.zeros(self.days, dtype=np.int64)
            np.add.at(sums, number, values.astype(np.int64))
            for at in np.flatnonzero(sums):
                days[int(at)][name] += int(sums[at])

    def _add_arrivals(self, arrivals: Counter[tuple[date, date]], made: _Event) -> None:
        import numpy as np

        kept = ~made.is_lost
        for copy, mask in ((1, kept), (2, kept & made.is_twice)):
            arrived = made.rows(copy)["arrived_at"][mask] // _DAY_US
            recorded = made.recorded_us[mask] // _DAY_US
            pairs, counts = np.unique(np.stack([arrived, recorded]), axis=1, return_counts=True)
            for (day, of), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
                epoch = _EPOCH.date()
                arrivals[epoch + timedelta(days=day), epoch + timedelta(days=of)] += count


class _Event:
    """What follows from the numbers of events, as columns of an engine."""

    def __init__(self, history: EventHistory, engine: Any, number: Any) -> None:
        self.history, self.engine, self.number = history, engine, number

    def _hash(self, purpose: int, below: int, of: Any = None) -> Any:
        return self.engine.below(purpose, self.number if of is None else of, below)

    def _is(self, purpose: int, share: float, of: Any = None) -> Any:
        return self._hash(purpose, _MILLION, of) < round(share * _MILLION)

    @cached_property
    def account(self) -> Any:
        return self.engine.remainder(self.number, self.history.accounts)

    @cached_property
    def true_us(self) -> Any:
        step = self.history.days * _DAY_US // self.history.events
        return self.number * step + self._hash(_AT, step) + self.history.start_us

    @cached_property
    def day(self) -> Any:
        return self.engine.quotient(self.true_us - self.history.start_us, _DAY_US)

    @cached_property
    def amount(self) -> Any:
        return self._hash(_AMOUNT, 100_000) + 1

    @cached_property
    def is_lost(self) -> Any:
        found = self._is(_LOST, self.history.lost)
        for first, stop in self.history.gap_spans_us:
            found = found | ((self.true_us >= first) & (self.true_us < stop))
        return found

    @cached_property
    def is_late(self) -> Any:
        return self._is(_LATE, self.history.late)

    @cached_property
    def is_twice(self) -> Any:
        return self._is(_TWICE, self.history.twice)

    @cached_property
    def arrived_us(self) -> Any:
        late = self._hash(_LATENESS, self.history.late_days * _DAY_US) + _DAY_US
        tangled = self._hash(_TANGLE, self.history.tangle_seconds * _SECOND_US)
        prompt = self._hash(_DELAY, _SECOND_US)
        choose = self.engine.choose
        delay = choose(self._is(_TANGLED, self.history.tangled), tangled, prompt)
        return self.true_us + choose(self.is_late, late, delay)

    @cached_property
    def recorded_us(self) -> Any:
        skew = self.history.skew_seconds * _SECOND_US
        off = self._hash(_SKEW, 2 * skew + 1, self.account) - skew
        is_skewed = self._is(_SKEWED, self.history.skewed, self.account)
        return self.true_us + self.engine.choose(is_skewed, off, off * 0)

    @property
    def recorded_day(self) -> Any:
        return self.engine.quotient(self.recorded_us - self.history.start_us, _DAY_US)

    def rows(self, copy: Any) -> dict[str, Any]:
        """Return the columns of a copy: 1, the first row of an event, or 2."""
        version = self.number * 0 + 1
        for step in self.history.schema_steps:
            version = version + self.engine.choose(self.day >= step, version * 0 + 1, version * 0)
        again = self._hash(_AGAIN, self.history.again_seconds * _SECOND_US) + 1
        return {
            "event_id": self.number,
            "account": self.account,
            "sequence_num": self.engine.quotient(self.number, self.history.accounts) + 1,
            "kind": self._hash(_KIND, len(_KINDS)),
            "amount_cents": self.amount,
            "amount_millis": self.amount,
            "currency": self._hash(_CURRENCY, len(_CURRENCIES)),
            "schema_version": version,
            "occurred_at": self.recorded_us,
            "arrived_at": self.arrived_us + again * (copy - 1),
            "copy": copy,
        }


class SparkFormulas:
    """Formulas as columns of Spark, those of `keep` as columns of `frame`."""

    def __init__(self, seed: int, frame: DataFrame | None = None) -> None:
        self._seed = seed
        #: The rows, with a column for each name that was kept so far.
        self.frame = frame

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a column of the frame, which `make` gives the first time that it is asked for.

        A formula that many others are made of would be a part of each, and Spark would analyse it
        as often: that took eight times as long.
        """
        from pyspark.sql import functions as F

        if self.frame is None:
            raise ValueError(f"there is no frame that could hold {name}")
        if name not in self.frame.columns:
            column = make()
            self.frame = self.frame.withColumn(name, column)
        return F.col(name)

    def below(self, purpose: int, number: Any, limit: int) -> Any:
        from pyspark.sql import functions as F

        first = (F.lit(one).cast("bigint") for one in (self._seed, purpose))
        return F.pmod(F.xxhash64(*first, number), F.lit(limit).cast("bigint"))

    def remainder(self, number: Any, by: int) -> Any:
        from pyspark.sql import functions as F

        return F.pmod(number, F.lit(by).cast("bigint"))

    def quotient(self, number: Any, by: int) -> Any:
        # Exact: the dividend is a multiple, and below 2 to the power of 53.
        return ((number - self.remainder(number, by)) / by).cast("bigint")

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        from pyspark.sql import functions as F

        return F.when(condition, one).otherwise(other)


class ArrayFormulas:
    """The same formulas over arrays of this process."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def keep(self, _: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives: nothing is kept of arrays, which may be long."""
        return make()

    def below(self, purpose: int, number: Any, limit: int) -> Any:
        import numpy as np

        found = _hash_longs(number, _chain(self._seed, purpose)).view(np.int64)
        return np.mod(found, np.int64(limit))

    def remainder(self, number: Any, by: int) -> Any:
        return number % by

    def quotient(self, number: Any, by: int) -> Any:
        return number // by

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        import numpy as np

        return np.where(condition, one, other)


#: xxHash's primes; Spark's `xxhash64` hashes a long as eight bytes, each value seeded by the last.
_PRIMES = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
_SPARK_SEED = 42


def _hash_longs(values: Any, seed: int) -> Any:
    """Hash an array of longs as Spark's `xxhash64` does, as unsigned numbers."""
    import numpy as np

    first, second, third, fourth, fifth = (np.uint64(one) for one in _PRIMES)

    def rotate(bits: Any, by: int) -> Any:
        return (bits << np.uint64(by)) | (bits >> np.uint64(64 - by))

    with np.errstate(over="ignore"):
        start = np.uint64((seed + int(fifth) + 8) % 2**64)
        found = start ^ (rotate(values.astype(np.int64).view(np.uint64) * second, 31) * first)
        found = rotate(found, 27) * first + fourth
        found = (found ^ (found >> np.uint64(33))) * second
        found = (found ^ (found >> np.uint64(29))) * third
        return found ^ (found >> np.uint64(32))


def _chain(seed: int, purpose: int) -> int:
    import numpy as np

    found = _SPARK_SEED
    for value in (seed, purpose):
        found = int(_hash_longs(np.array([value], dtype=np.int64), found)[0])
    return found


def _hash_one(seed: int, purpose: int, number: int) -> int:
    """Return a hash of one number, not negative."""
    import numpy as np

    return int(_hash_longs(np.array([number], dtype=np.int64), _chain(seed, purpose))[0]) >> 1


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _arrow_table(rows: Mapping[str, Any], amount: Any) -> pa.Table:
    """Return the columns as Arrow has them, with nulls where the schema of a row has no column."""
    import numpy as np
    import pyarrow as pa

    version = rows["schema_version"]
    instants = pa.timestamp("us", tz="UTC")
    return pa.table({
        "event_id": pa.array(rows["event_id"]),
        "account": pa.array(rows["account"]),
        "sequence_num": pa.array(rows["sequence_num"]),
        "kind": pa.array(np.array(_KINDS)[rows["kind"]]),
        "amount_cents": pa.array(amount, mask=version > 2),
        "amount_millis": pa.array(amount * 10, mask=version < 3),
        "currency": pa.array(np.array(_CURRENCIES)[rows["currency"]], mask=version < 2),
        "schema_version": pa.array(version.astype(np.int32)),
        "occurred_at": pa.array(rows["occurred_at"], type=pa.int64()).cast(instants),
        "arrived_at": pa.array(rows["arrived_at"], type=pa.int64()).cast(instants),
        "copy": pa.array(rows["copy"].astype(np.int32)),
    })  # fmt: skip
