"""Which accepted versions of a product can be gone back to, and by which tags."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse_backfill import errors
from lakehouse_backfill.core.versions.pointer import ACCEPTED_ACTIONS
from lakehouse_backfill.domain.contract import KeepVersions
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.errors import Blocked, PointerMoved

_BEFORE, _AFTER = "lhb-before-", "lhb-v"
_TOKEN_LENGTH = 12
PublicationHistory = tuple[Publication, ...]


@dataclass(frozen=True)
class VersionRetention:
    """Versions with the reason why they are kept, or let go; `gone` were let go before.

    `acts` are the accepted rows, newest first; those up to number `last` belong to kept versions.
    """

    accepted_rows: PublicationHistory
    last_kept: int
    kept: dict[int, str]
    expiring: dict[int, str]
    expired: frozenset[int]
    pending: str = ""
    #: The beginnings of the tokens of all rows, also of those that were given back.
    tokens: frozenset[str] = frozenset()

    @property
    def kept_snapshots(self) -> frozenset[tuple[str, int | None]]:
        """The tables and snapshots of the versions that are kept."""
        return frozenset(
            (row.table, row.snapshot_id) for row in self.accepted_rows[: self.last_kept + 1]
        )

    def tag_reason(self, tag: str) -> str | None:
        """Say why a tag of a publication or rollback is kept; None: nothing needs it."""
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
        """Tell whether an act of the product has made the tag, or began to."""
        return tag[-_TOKEN_LENGTH:] in self.tokens

    def _kept_reason(self, version: int) -> str:
        oldest = self.accepted_rows[self.last_kept].version
        return self.kept.get(version) or f"it lies on the way back to version {oldest}"


def is_publication_tag(tag: str) -> bool:
    """Tell whether a tag is one of a publication or a rollback."""
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
    """Decide for each accepted version: the accepted one stays, and what `keep` says.

    The kept ones are always the newest: a rollback needs all acts since the version it leads to.
    With `erasure`, a reason, only the accepted one stays, of a table that readers follow as what
    main holds now, without a tag on what it held. While an act is pending all stay.
    """
    rows = tuple(history)
    acts = tuple(row for row in rows if row.action in ACCEPTED_ACTIONS)
    gone = frozenset(row.version for row in rows if row.action == "expire")
    newest: dict[int, int] = {}
    for number, row in enumerate(acts):
        newest.setdefault(row.version, number)
    kept: dict[int, str] = {}
    expiring: dict[int, str] = {}
    for place, (version, number) in enumerate(newest.items()):
        ended = acts[number - 1].at if number else now
        why = _keep_reason(place, ended, keep, now, erasure)
        if pending is not None and version not in gone:
            why = why or f"{pending.by} is at work on {pending.product}"
        if why and version not in gone:
            kept[version] = why
        elif version not in gone:
            expiring[version] = erasure or (
                f"older than the newest {keep.count} versions, and superseded for more than "
                f"{keep.days} days"
            )
    last = max((newest[version] for version in kept), default=-1)
    if erasure and not is_pinned and pending is None:
        last = -1
    tokens = frozenset(row.token[:_TOKEN_LENGTH] for row in rows)
    under_way = pending.token if pending else ""
    return VersionRetention(acts, last, kept, expiring, gone, under_way, tokens)


def _keep_reason(
    place: int, ended: datetime, keep: KeepVersions, now: datetime, erasure: str
) -> str:
    if place == 0:
        return "accepted now"
    if erasure:
        return ""
    if place < keep.count:
        return f"one of the newest {keep.count} versions"
    until = ended + timedelta(days=keep.days)
    return f"superseded less than {keep.days} days ago: until {until:%Y-%m-%d}" * (until > now)


def expiration_rows(
    product: str, expiring: dict[int, str], at: datetime, by: str
) -> PublicationHistory:
    """Give the rows that let versions go, oldest first; their tokens are their own."""
    return tuple(
        Publication(
            product=product, version=version, token=f"expire-{product}-{version}", action="expire",
            run_id=None, table="", snapshot_id=None, before_snapshot_id=None, scope=None,
            supersedes=None, at=at, by=by, reason=because,
        )
        for version, because in sorted(expiring.items())
    )  # fmt: skip


def count_expirations(history: Iterable[Publication]) -> int:
    """Count the rows by which versions were let go."""
    return sum(row.action == "expire" for row in history)


def require_version_kept(history: Iterable[Publication], product: str, version: int) -> None:
    """Raise Blocked, with who and why, when a version was let go: what it held may be gone."""
    for row in history:
        if row.action == "expire" and row.version == version:
            raise Blocked(
                f"{product}: version {version} cannot be gone back to: {row.by} let it go on "
                f"{row.at:%Y-%m-%d}, {row.reason}",
                state="nothing was rolled back",
                fix=f"{errors.command_line('versions', product)}; or restate the partitions",
            )


def require_none_expired_since(pointer: Pointer, known: int, product: str) -> None:
    """Raise PointerMoved when versions were let go after the way back was worked out."""
    if pointer.expirations != known:
        raise PointerMoved(
            f"{product}: versions were let go meanwhile",
            state="nothing was rolled back",
            fix=errors.command_line("versions", product),
        )
