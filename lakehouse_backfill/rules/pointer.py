"""What rows of `accepted_output_version` do to their product's pointer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import get_args

from lakehouse_backfill.model.publication import Action, Pointer, Publication

#: Says who is at work, while an act is pending; what is accepted does not depend on it.
_PASSING = {"driver"}


def after(pointer: Pointer, row: Publication) -> Pointer:
    """Give the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`; expire, which lets an old version go, is counted. A version number,
    once used, is never given out again.
    """
    if row.action == "expire":
        return pointer.model_copy(update={"expirations": pointer.expirations + 1})
    changed: dict[str, object] = {"last_version": max(pointer.last_version, row.version)}
    if row.action == "reserve":
        return pointer.model_copy(update={**changed, "pending": row})
    accepted = pointer.accepted if row.action == "release" else row
    return pointer.model_copy(update={**changed, "accepted": accepted, "pending": None})


def fault(product: str, rows: Iterable[Publication], pointer: Pointer | None) -> str | None:
    """Say how the pointer that commands go by differs from what its rows lead to, oldest first.

    None when it does not. A change that fits both is not found.
    """
    rows = tuple(rows)
    for row in rows:
        if row.action not in get_args(Action) or not isinstance(row.version, int):
            return f"{product}: a row of its versions was edited: '{row.action}' is no act"
    if pointer is None:
        return f"{product}: its pointer is gone, or was edited: it cannot be read"
    told = reduce(after, rows, Pointer())
    for name in ("accepted", "pending"):
        said, held = getattr(told, name), getattr(pointer, name)
        if _plain(said) != _plain(held):
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
    return None


def _plain(row: Publication | None) -> dict[str, object] | None:
    return None if row is None else {k: v for k, v in vars(row).items() if k not in _PASSING}


def _difference(told: Publication | None, held: Publication | None) -> str:
    if told is None or held is None:
        return f"{_named(held)}, and {_named(told)} by its rows"
    differing = (name for name, value in (_plain(told) or {}).items() if vars(held)[name] != value)
    return f"{_named(held)} differs in {', '.join(sorted(differing))}"


def _named(row: Publication | None) -> str:
    return "none" if row is None else f"version {row.version} ({row.action} by {row.by})"
