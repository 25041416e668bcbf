"""What a row of `accepted_output_version` does to its product's pointer."""

from __future__ import annotations

from lakehouse_backfill.model.publication import Pointer, Publication


def after(pointer: Pointer, row: Publication) -> Pointer:
    """Give the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`. A version number, once used, is never given out again.
    """
    last_version = max(pointer.last_version, row.version)
    if row.action == "reserve":
        return Pointer(accepted=pointer.accepted, pending=row, last_version=last_version)
    accepted = pointer.accepted if row.action == "release" else row
    return Pointer(accepted=accepted, pending=None, last_version=last_version)
