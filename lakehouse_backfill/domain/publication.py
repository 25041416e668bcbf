"""Publications, one row of `accepted_output_version` each, and their effect on the pointer.

The rows of a product are sealed by a hash chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from functools import reduce
from itertools import filterfalse, takewhile
from typing import Any, Literal, get_args

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.serialization import Value, added_later, digest
from lakehouse_backfill.errors import Tampered

PublicationAction = Literal["baseline", "reserve", "publish", "rollback", "release", "expire"]


class Publication(Value):
    """One row of `accepted_output_version`.

    `version` counts 1, 2, 3 … per product; 0 is the state before the first run. `token` identifies
    the publication and is in the target's snapshot summary. `before_snapshot_id` is the target's
    head right before it: the content that rollback restores, for the partitions of `scope`. `epoch`
    is the lease of the publishing process: a process that lost its lease can neither finish nor
    release it. `evidence_digest` is that of the archive of what was accepted.
    """

    product: str
    version: int
    token: str
    action: PublicationAction
    run_id: str | None
    table: str
    snapshot_id: int | None
    before_snapshot_id: int | None
    scope: Scope | None
    supersedes: int | None
    at: datetime
    by: str
    approved_by: tuple[str, ...] = ()
    accepted_by: tuple[str, ...] = ()
    manifest_hash: str | None = None
    result_digest: str | None = None
    evidence_digest: str | None = None
    reason: str = ""
    epoch: int = 0
    #: For a rollback: the restored version; `version` differs from it if the rollback is partial.
    returns_to: int | None = None
    #: The publishing process, while the publication is pending.
    driver: str | None = None
    seal: str = added_later("", "SHA-256 of the row and the seal of the product's row before it.")

    signature: str = added_later(
        "", "The signed statement of who published or rolled back, as a DSSE envelope in JSON."
    )

    @property
    def tags(self) -> dict[Literal["before", "after"], str]:
        """The tags that keep both sides of the publication readable."""
        token = self.token[:12]
        return {"before": f"lhb-before-{token}", "after": f"lhb-v{self.version}-{token}"}


class Pointer(Value):
    """The current state of a product: the accepted publication, and a pending one."""

    accepted: Publication | None = None
    pending: Publication | None = None
    last_version: int = 0
    #: Number of expired versions. A rollback decided before an expiry must be decided again.
    expirations: int = added_later(0, "How many versions were let go.")
    head: str = added_later("", "The seal of the product's newest row.")


#: Snapshot summary property of every commit that brings in rows: `run.mode`, or the mode of what
#: is no run.
MODE_PROPERTY = "lakehouse-backfill.processing-mode"

#: The columns of a table of versions that the product does not have.
VERSION_COLUMN, STATUS_COLUMN = "output_version", "output_status"
#: What a view of a table of versions ends with, in the SQL of every engine.
ACCEPTED_ROWS = f" WHERE {STATUS_COLUMN} = 'accepted'"
VersionStatus = Literal["accepted", "superseded", "rolled_back"]


class LabelledVersion(Value):
    """A kept version with the snapshot that holds its rows, and its status."""

    version: int
    status: VersionStatus
    table: str
    snapshot_id: int


class VersionLabels(Value):
    """What a table of versions has to say after a number of acts on its product.

    A row gets the first of `versions` whose snapshot holds it. `let_go` are versions that expired:
    what they were the first to hold keeps their number while a kept version holds it.
    """

    product: str
    table: str
    #: How many rows the product's history had: a later state is never replaced by an earlier one.
    acts: int
    versions: tuple[LabelledVersion, ...]
    let_go: tuple[int, ...] = ()
    #: The mode of the run of the newest act.
    mode: str = added_later("none", "The mode of the run of the newest act.")

    @property
    def accepted(self) -> LabelledVersion:
        """The version that readers get."""
        return next(one for one in self.versions if one.status == "accepted")


#: Fields about the process of a pending publication, on which the accepted state does not depend.
_TRANSIENT_FIELDS = {"driver"}
_SEALED: dict[str, Any] = {"exclude": {"seal"}, "exclude_defaults": True, "warnings": False}


def apply_to_pointer(pointer: Pointer, row: Publication) -> Pointer:
    """Return the pointer as it is once `row` is written.

    reserve sets `pending`; publish, rollback and baseline set `accepted` and clear `pending`;
    release clears `pending`; expire, which removes an old version, is counted. A version number is
    never used again.
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


def sealed_content(previous: str, row: Publication) -> dict[str, Any]:
    """Return what a row's seal is the SHA-256 of: its fields, and the seal of the row before it.

    Fields at their defaults are left out, so a field that a later release adds changes no older
    seal.
    """
    in_utc = row.model_copy(update={"at": row.at.astimezone(timezone.utc)})
    return {"previous": previous, "row": in_utc.model_dump(mode="json", **_SEALED)}


def pointer_fault(product: str, rows: Iterable[Publication], pointer: Pointer | None) -> str | None:
    """Describe how a stored pointer differs from the one that its rows, oldest first, lead to.

    None when it does not differ. Rows are sealed one by one. If someone edits a row, all later
    seals and the pointer together, the log of the run still shows it: it has the digest of what was
    published.
    """
    rows = tuple(rows)
    for row in filterfalse(_is_act, rows):
        return f"{product}: a row of its versions was edited: '{row.action}' is no act"
    if pointer is None:
        return unreadable_pointer_fault(product)
    expected = reduce(apply_to_pointer, rows, Pointer())
    for name in ("accepted", "pending"):
        expected_row, pointer_row = getattr(expected, name), getattr(pointer, name)
        if _durable_fields(expected_row) != _durable_fields(pointer_row):
            difference = _difference(expected_row, pointer_row)
            return f"{product}: {name} in its pointer is not that of its rows: {difference}"
    if expected.last_version != pointer.last_version:
        return (
            f"{product}: its pointer counts {pointer.last_version} versions, its rows "
            f"{expected.last_version}"
        )
    if expected.expirations != pointer.expirations:
        return (
            f"{product}: by its pointer {pointer.expirations} versions have expired, by its rows "
            f"{expected.expirations}"
        )
    return _seal_fault(product, rows, pointer)


def _is_act(row: Publication) -> bool:
    """Return whether the row can move a pointer: an edited one may not."""
    return row.action in get_args(PublicationAction) and isinstance(row.version, int)


def unreadable_pointer_fault(product: str) -> str:
    """Describe a pointer that is missing although the product has rows, or that is no pointer."""
    return f"{product}: its pointer is gone, or was edited: it cannot be read"


def tampered_pointer_error(fault: str) -> Tampered:
    """Build the error for a pointer that does not fit its rows."""
    return Tampered(
        fault,
        state="nothing was written; readers see what they saw before",
        fix="lakehouse-backfill audit verify, then lakehouse-backfill recover --all: it writes the "
        "pointer again if the rows that lead to it are whole",
    )


def require_whole_pointer(
    product: str, rows: Iterable[Publication], pointer: Pointer | None
) -> None:
    """Raise Tampered unless the pointer is the one that its rows, oldest first, lead to."""
    fault = pointer_fault(product, rows, pointer)
    if fault is not None:
        raise tampered_pointer_error(fault)


def rebuilt_pointer(
    product: str, rows: tuple[Publication, ...], tokens: Collection[str]
) -> Pointer:
    """Return the pointer that the rows, oldest first, lead to.

    `tokens` are those of the publications that the logs of the runs know. Raises Tampered when a
    row was edited, or is missing as far as seals and tokens tell.
    """
    pointer = reduce(apply_to_pointer, takewhile(_is_act, rows), Pointer())
    fault = pointer_fault(product, rows, pointer)
    missing = sorted(set(tokens) - {row.token for row in rows if row.action == "publish"})
    if fault is None and missing:
        fault = f"{product}: the row of a publication that its run records is gone ({missing[0]})"
    if fault is not None:
        raise missing_rows_error(fault)
    return pointer


def missing_rows_error(fault: str) -> Tampered:
    """Build the error for rows that were edited or are missing, so that no pointer follows."""
    return Tampered(
        fault,
        state="the pointer was not written; readers see what they saw before",
        fix="bring back the table accepted_output_version as it was: its earlier snapshots and "
        "metadata files hold it (docs/recovery.md)",
    )


def _seal_fault(product: str, rows: tuple[Publication, ...], pointer: Pointer) -> str | None:
    """Describe the first row that is not as it was written; rows of older releases have no seal."""
    previous = ""
    for row in rows:
        if not row.seal and not previous:
            continue
        if row.seal != digest(sealed_content(previous, row)):
            return (
                f"{product}: the row of {_describe_row(row)} was edited, or the one before it is "
                "gone: its seal is not that of its content"
            )
        previous = row.seal
    if pointer.head != previous:
        return f"{product}: the newest rows of its versions are not those that were written last"
    return None


def _durable_fields(row: Publication | None) -> dict[str, object] | None:
    return None if row is None else {k: v for k, v in row if k not in _TRANSIENT_FIELDS}


def _difference(expected: Publication | None, stored: Publication | None) -> str:
    if expected is None or stored is None:
        return f"{_describe_row(stored)}, and {_describe_row(expected)} by its rows"
    fields = _durable_fields(expected) or {}
    differing = (name for name, value in fields.items() if getattr(stored, name) != value)
    return f"{_describe_row(stored)} differs in {', '.join(sorted(differing))}"


def _describe_row(row: Publication | None) -> str:
    return "none" if row is None else f"version {row.version} ({row.action} by {row.by})"


#: Table property of a copy that rehearsals work on: the UUID of the real table.
REHEARSAL_PROPERTY = "lakehouse-backfill.rehearsal-of"
