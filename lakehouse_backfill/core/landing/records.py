"""What a record of an API is, by what was landed of it before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from lakehouse_backfill.domain.serialization import digest

RecordChange = Literal["insert", "update", "correction", "deletion"]


class KnownRecord(NamedTuple):
    """The newest landed state of a record."""

    record_hash: str
    version: str | None
    is_deleted: bool = False


class JudgedRecord(NamedTuple):
    """A record that is landed, and why."""

    record_id: str
    change: RecordChange
    record_hash: str
    record: Mapping[str, Any]


def judge_record(
    record: Mapping[str, Any], key: str, version: str | None, known: dict[str, KnownRecord]
) -> JudgedRecord | None:
    """Return what is landed of a record, and keep it in `known`; None when it is landed already.

    Other content with the version that was landed is a `correction`: the vendor changed the record
    without saying so. Without a version field every change is an `update`.
    """
    record_id, hashed = str(record[key]), digest(dict(record))
    stamp = None if version is None else str(record.get(version))
    before = known.get(record_id)
    if before is not None and before.record_hash == hashed and not before.is_deleted:
        return None
    known[record_id] = KnownRecord(hashed, stamp)
    if before is None or before.is_deleted:
        return JudgedRecord(record_id, "insert", hashed, record)
    is_silent = version is not None and before.version == stamp
    return JudgedRecord(record_id, "correction" if is_silent else "update", hashed, record)


def is_overtaken(
    record: Mapping[str, Any], key: str, version: str | None, known: Mapping[str, KnownRecord]
) -> bool:
    """Return whether a newer version of a record is landed, or its deletion at this version.

    What is sent to a webhook may come late and in any order; without a version nothing is known.
    """
    before = known.get(str(record[key]))
    if version is None or before is None or before.version is None:
        return False
    stamp = record.get(version)
    if stamp is None:
        return False
    return _is_less(str(stamp), before.version) or (
        before.is_deleted and str(stamp) == before.version
    )


def _is_less(one: str, other: str) -> bool:
    """Compare numbers as numbers, and texts, such as instants of one form, as texts."""
    try:
        numbers = Decimal(one), Decimal(other)
    except InvalidOperation:
        return one < other
    if not all(number.is_finite() for number in numbers):
        return one < other
    return numbers[0] < numbers[1]


def deleted_ids(
    known: Mapping[str, KnownRecord], in_range: Iterable[str], seen: frozenset[str]
) -> tuple[str, ...]:
    """Return the landed records of a range that a reading of the whole range did not meet."""
    live = (one for one in in_range if one in known and not known[one].is_deleted)
    return tuple(sorted(one for one in live if one not in seen))
