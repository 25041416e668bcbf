"""Decides which accepted versions stay available for a rollback, and which tags keep them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.contract import KeepVersions
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.errors import Blocked, PointerMoved

_BEFORE, _AFTER = "lhb-before-", "lhb-v"
_TOKEN_LENGTH = 12
PublicationHistory = tuple[Publication, ...]


@dataclass(frozen=True)
class VersionRetention:
    """The versions that are kept or expire, each with the reason; `expired` ones expired before.

    `accepted_rows` are newest first; those up to index `last_kept` belong to kept versions.
    """

    accepted_rows: PublicationHistory
    last_kept: int
    kept: dict[int, str]
    expiring: dict[int, str]
    expired: frozenset[int]
    pending: str = ""
    #: The first characters of the tokens of all rows, also of released ones.
    tokens: frozenset[str] = frozenset()

    @property
    def kept_snapshots(self) -> frozenset[tuple[str, int | None]]:
        """The tables and snapshots of the versions that are kept."""
        return frozenset(
            (row.table, row.snapshot_id) for row in self.accepted_rows[: self.last_kept + 1]
        )

    def tag_reason(self, tag: str) -> str | None:
        """Return why a tag of a publication or rollback is kept; None: nothing needs it."""
        token = tag[-_TOKEN_LENGTH:]
        for number, row in enumerate(self.accepted_rows):
            if row.token[:_TOKEN_LENGTH] != token or row.token.endswith("-baseline"):
                continue
            is_before = tag.startswith(_BEFORE)
            if number < self.last_kept or (number == self.last_kept and not is_before):
                what = "what was there before" if is_before else "the content of"
                return f"{what} version {row.version}: {self._kept_reason(row.version)}"
            return None
        return f"{self.pending} is under way" if token == self.pending[:_TOKEN_LENGTH] else None

    def has_made_tag(self, tag: str) -> bool:
        """Return whether a publication or rollback of the product made the tag, or began to."""
        return tag[-_TOKEN_LENGTH:] in self.tokens

    def _kept_reason(self, version: int) -> str:
        oldest = self.accepted_rows[self.last_kept].version
        return self.kept.get(version) or f"it lies on the way back to version {oldest}"


def is_publication_tag(tag: str) -> bool:
    """Return whether a tag is one of a publication or a rollback."""
    return tag.startswith((_BEFORE, _AFTER))


def decide_version_retention(
    history: Iterable[Publication],
    keep: KeepVersions,
    pending: Publication | None,
    now: datetime,
    erasure: str = "",
    *,
    is_pinned: bool = False,
) -> VersionRetention:
    """Decide for each accepted version whether it is kept: the accepted one, and those of `keep`.

    The kept ones are always the newest: a rollback needs all publications since its version. With
    `erasure`, a reason, only the accepted version is kept; a table that readers follow then keeps
    no tag, as they read the head of main. While a publication or rollback is pending all are kept.
    """
    rows = tuple(history)
    accepted_rows = pointer.accepted_rows(rows)
    expired = frozenset(row.version for row in rows if row.action == "expire")
    newest: dict[int, int] = {}
    for number, row in enumerate(accepted_rows):
        newest.setdefault(row.version, number)
    kept: dict[int, str] = {}
    expiring: dict[int, str] = {}
    for rank, (version, number) in enumerate(newest.items()):
        superseded_at = accepted_rows[number - 1].at if number else now
        reason = _keep_reason(rank, superseded_at, keep, now, erasure)
        if pending is not None and version not in expired:
            reason = reason or f"{pending.by} is at work on {pending.product}"
        if reason and version not in expired:
            kept[version] = reason
        elif version not in expired:
            expiring[version] = erasure or (
                f"older than the newest {keep.count} versions, and superseded for more than "
                f"{keep.days} days"
            )
    last_kept = max((newest[version] for version in kept), default=-1)
    if erasure and not is_pinned and pending is None:
        last_kept = -1
    tokens = frozenset(row.token[:_TOKEN_LENGTH] for row in rows)
    under_way = pending.token if pending else ""
    return VersionRetention(accepted_rows, last_kept, kept, expiring, expired, under_way, tokens)


def _keep_reason(
    place: int, ended: datetime, keep: KeepVersions, now: datetime, erasure: str
) -> str:
    if place == 0:
        return "accepted now"
    if erasure:
        return ""
    if place < keep.count:
        return f"one of the newest {keep.count} versions"
    kept_until = ended + timedelta(days=keep.days)
    return f"superseded less than {keep.days} days ago: until {kept_until:%Y-%m-%d}" * (
        kept_until > now
    )


def expiration_rows(
    product: str, expiring: dict[int, str], at: datetime, by: str
) -> PublicationHistory:
    """Build the rows that expire versions, oldest first; each has a token of its own."""
    return tuple(
        Publication(
            product=product, version=version, token=f"expire-{product}-{version}", action="expire",
            run_id=None, table="", snapshot_id=None, before_snapshot_id=None, scope=None,
            supersedes=None, at=at, by=by, reason=because,
        )
        for version, because in sorted(expiring.items())
    )  # fmt: skip


def count_expirations(history: Iterable[Publication]) -> int:
    """Count the rows that expired versions."""
    return sum(row.action == "expire" for row in history)


def require_version_kept(history: Iterable[Publication], product: str, version: int) -> None:
    """Raise Blocked, with actor and reason, when a version expired.

    Its content may be deleted.
    """
    for row in history:
        if row.action == "expire" and row.version == version:
            raise Blocked(
                f"{product}: version {version} cannot be gone back to: {row.by} let it go on "
                f"{row.at:%Y-%m-%d}, {row.reason}",
                state="nothing was rolled back",
                fix=f"{command_line('versions', product)}; or restate the partitions",
            )


def require_none_expired_since(pointer: Pointer, known: int, product: str) -> None:
    """Raise PointerMoved when versions expired after the rollback target was resolved."""
    if pointer.expirations != known:
        raise PointerMoved(
            f"{product}: versions have expired meanwhile",
            state="nothing was rolled back",
            fix=command_line("versions", product),
        )
