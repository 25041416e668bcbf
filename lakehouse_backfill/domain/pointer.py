"""What rows of `accepted_output_version` do to their product's pointer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone
from functools import reduce
from typing import Any, get_args

from lakehouse_backfill.domain.publication import Pointer, Publication, PublicationAction
from lakehouse_backfill.domain.value import digest

#: Says who is at work, while an act is pending; what is accepted does not depend on it.
_TRANSIENT_FIELDS = {"driver"}
_SEALED: dict[str, Any] = {"exclude": {"seal"}, "exclude_defaults": True, "warnings": False}


def apply_to_pointer(pointer: Pointer, row: Publication) -> Pointer:
    """Give the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`; expire, which lets an old version go, is counted. A version number,
    once used, is never given out again.
    """
    changed: dict[str, object] = {"head": row.seal}
    if row.action == "expire":
        changed["expirations"] = pointer.expirations + 1
        return pointer.model_copy(update=changed)
    changed["last_version"] = max(pointer.last_version, row.version)
    if row.action == "reserve":
        return pointer.model_copy(update={**changed, "pending": row})
    accepted = pointer.accepted if row.action == "release" else row
    return pointer.model_copy(update={**changed, "accepted": accepted, "pending": None})


def seal_publication(pointer: Pointer, row: Publication) -> Publication:
    """Give a row as it is written: its seal covers it and, by the seal before, all before it."""
    return row.model_copy(update={"seal": publication_seal(pointer.head, row)})


def publication_seal(previous: str, row: Publication) -> str:
    """SHA-256 over everything that the row says and the seal of the product's row before it.

    Fields at their defaults are left out: one that a later release adds changes no older seal.
    """
    in_utc = row.model_copy(update={"at": row.at.astimezone(timezone.utc)})
    return digest({"previous": previous, "row": in_utc.model_dump(mode="json", **_SEALED)})


def pointer_fault(product: str, rows: Iterable[Publication], pointer: Pointer | None) -> str | None:
    """Say how the pointer that commands go by differs from what its rows lead to, oldest first.

    None when it does not. Rows are sealed one by one: who edits a row, all seals after it and the
    pointer together is found by the log of the run, which names the digest of what was published.
    """
    rows = tuple(rows)
    for row in rows:
        if row.action not in get_args(PublicationAction) or not isinstance(row.version, int):
            return f"{product}: a row of its versions was edited: '{row.action}' is no act"
    if pointer is None:
        return f"{product}: its pointer is gone, or was edited: it cannot be read"
    told = reduce(apply_to_pointer, rows, Pointer())
    for name in ("accepted", "pending"):
        said, held = getattr(told, name), getattr(pointer, name)
        if _durable_fields(said) != _durable_fields(held):
            what = _difference(said, held)
            return f"{product}: {name} in its pointer is not that of its rows: {what}"
    if told.last_version != pointer.last_version:
        return (
            f"{product}: its pointer counts {pointer.last_version} versions, its rows "
            f"{told.last_version}"
        )
    if told.expirations != pointer.expirations:
        return (
            f"{product}: by its pointer {pointer.expirations} versions were let go, by its rows "
            f"{told.expirations}"
        )
    return _seal_fault(product, rows, pointer)


def _seal_fault(product: str, rows: tuple[Publication, ...], pointer: Pointer) -> str | None:
    """Name the first row that is not as it was written; rows of older releases have no seal."""
    previous = ""
    for row in rows:
        if not row.seal and not previous:
            continue
        if row.seal != publication_seal(previous, row):
            return (
                f"{product}: the row of {_describe_row(row)} was edited, or the one before it is gone: "
                "its seal is not that of its content"
            )
        previous = row.seal
    if pointer.head != previous:
        return f"{product}: the newest rows of its versions are not those that were written last"
    return None


def _durable_fields(row: Publication | None) -> dict[str, object] | None:
    return (
        None if row is None else {k: v for k, v in vars(row).items() if k not in _TRANSIENT_FIELDS}
    )


def _difference(told: Publication | None, held: Publication | None) -> str:
    if told is None or held is None:
        return f"{_describe_row(held)}, and {_describe_row(told)} by its rows"
    differing = (
        name for name, value in (_durable_fields(told) or {}).items() if vars(held)[name] != value
    )
    return f"{_describe_row(held)} differs in {', '.join(sorted(differing))}"


def _describe_row(row: Publication | None) -> str:
    return "none" if row is None else f"version {row.version} ({row.action} by {row.by})"
