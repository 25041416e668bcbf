"""What a record of an API is, by what was landed of it before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
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
    stamp = version_text(record, version)
    before = known.get(record_id)
    if before is not None and before.record_hash == hashed and not before.is_deleted:
        return None
    known[record_id] = KnownRecord(hashed, stamp)
    if before is None or before.is_deleted:
        return JudgedRecord(record_id, "insert", hashed, record)
    is_silent = version is not None and before.version == stamp
    return JudgedRecord(record_id, "correction" if is_silent else "update", hashed, record)


def version_text(record: Mapping[str, Any], version: str | None) -> str | None:
    """Return the version of a record as text; None where it has none."""
    found = None if version is None else record.get(version)
    return None if found is None else str(found)


def is_overtaken(
    record: Mapping[str, Any], key: str, version: str | None, known: Mapping[str, KnownRecord]
) -> bool:
    """Return whether a newer version of a record is landed, or its deletion at this version.

    What is sent to a webhook may come late and in any order; without a version nothing is known.
    """
    before = known.get(str(record[key]))
    if version is None or before is None or before.version is None:
        return False
    stamp = version_text(record, version)
    if stamp is None:
        return False
    return _is_less(stamp, before.version) or (before.is_deleted and stamp == before.version)


def _is_less(one: str, other: str) -> bool:
    """Compare numbers as numbers, instants with a zone as instants, and other texts as texts."""
    try:
        numbers = Decimal(one), Decimal(other)
    except InvalidOperation:
        moments = _instant(one), _instant(other)
        return one < other if None in moments else moments[0] < moments[1]  # type: ignore[operator]
    if not all(number.is_finite() for number in numbers):
        return one < other
    return numbers[0] < numbers[1]


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


def deleted_ids(
    known: Mapping[str, KnownRecord], in_range: Iterable[str], seen: frozenset[str]
) -> tuple[str, ...]:
    """Return the landed records of a range that a reading of the whole range did not meet."""
    live = (one for one in in_range if one in known and not known[one].is_deleted)
    return tuple(sorted(one for one in live if one not in seen))
