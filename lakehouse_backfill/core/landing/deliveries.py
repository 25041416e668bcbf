"""What a delivered file is: new, landed already, a duplicate, a correction, or to be rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from lakehouse_backfill.domain.sources.declaration import DuplicatePolicy
from lakehouse_backfill.domain.sources.landings import FileDelivery, FoundFile, LandingManifest
from lakehouse_backfill.errors import Blocked

DeliveryAction = Literal["import", "replace", "correction", "skip", "duplicate", "reject"]
_SHOWN = 5


class DeliveryVerdict(NamedTuple):
    """What is done with a file, why, and the number of the attempt."""

    action: DeliveryAction
    attempt: int
    because: str = ""

    @property
    def is_read(self) -> bool:
        """Whether its rows are landed, if they can be read."""
        return self.action in ("import", "replace", "correction")


class KnownDeliveries:
    """The ledger of one source, by path and by content; rows that name a run are no deliveries."""

    def __init__(self, deliveries: Iterable[FileDelivery]) -> None:
        self.by_path: dict[str, list[FileDelivery]] = {}
        self.landed_content: dict[str, list[FileDelivery]] = {}
        present: dict[str, list[FileDelivery]] = {}
        for one in deliveries:
            if one.accepted_run_id is not None:
                continue
            self.by_path.setdefault(one.file_id, []).append(one)
            if one.is_landed:
                # An import replaces what was landed of its path; a correction stands beside it.
                kept = present.get(one.file_id, []) if one.status == "correction" else []
                present[one.file_id] = [*kept, one]
        for landed in present.values():
            for one in landed:
                self.landed_content.setdefault(one.content_hash, []).append(one)

    def landed(self, path: str) -> FileDelivery | None:
        """Return the newest attempt of a path that was landed."""
        found = (one for one in reversed(self.by_path.get(path, [])) if one.is_landed)
        return next(found, None)

    def first_seen(self, file: FoundFile) -> FileDelivery | None:
        """Return the first attempt with this path and content."""
        attempts = self.by_path.get(file.path, [])
        return next((one for one in attempts if one.content_hash == file.content_hash), None)

    def copy_of(self, file: FoundFile) -> FileDelivery | None:
        """Return a landed file with another path, the same content and the same business date."""
        day = file.business_date.isoformat() if file.business_date else None
        for one in self.landed_content.get(file.content_hash, []):
            if one.file_id != file.path and one.business_date == day:
                return one
        return None

    def next_attempt(self, path: str) -> int:
        """Return the number of the next attempt of a path."""
        return max((one.attempt for one in self.by_path.get(path, [])), default=0) + 1


def judge_delivery(
    file: FoundFile, known: KnownDeliveries, policy: DuplicatePolicy, *, stays: bool
) -> DeliveryVerdict:
    """Return what is done with a file.

    `stays`: files are not moved away once they are landed, so that the same path with the same
    content is the same delivery. A file with the content of another landed one is a duplicate
    under every policy: to land it again would count its rows twice.
    """
    attempt, landed = known.next_attempt(file.path), known.landed(file.path)
    if landed is None:
        other = known.copy_of(file)
        if other is None:
            return DeliveryVerdict("import", attempt)
        because = f"its content is that of {other.file_id}, which was landed"
        return DeliveryVerdict("reject" if policy == "reject" else "duplicate", attempt, because)
    is_same = landed.content_hash == file.content_hash
    if is_same and stays:
        return DeliveryVerdict("skip", landed.attempt, "landed already")
    what = "the same content" if is_same else "other content"
    because = f"was landed before (attempt {landed.attempt}), and comes again with {what}"
    if policy == "reprocess":
        return DeliveryVerdict("replace", attempt, because)
    if policy == "correction":
        return DeliveryVerdict("duplicate" if is_same else "correction", attempt, because)
    return DeliveryVerdict("reject" if policy == "reject" else "duplicate", attempt, because)


def without_repeated_content(
    judged: Sequence[tuple[FoundFile, DeliveryVerdict]], policy: DuplicatePolicy
) -> tuple[tuple[FoundFile, DeliveryVerdict], ...]:
    """Land the first of several new files with one content and business date, by path."""
    first: dict[tuple[str, object], str] = {}
    found = []
    for file, verdict in judged:
        if verdict.action == "import":
            other = first.setdefault((file.content_hash, file.business_date), file.path)
            if other != file.path:
                action: DeliveryAction = "reject" if policy == "reject" else "duplicate"
                because = f"its content is that of {other}, which comes with it"
                verdict = DeliveryVerdict(action, verdict.attempt, because)
        found.append((file, verdict))
    return tuple(found)


def is_recorded(file: FoundFile, known: KnownDeliveries, status: str, reason: str) -> bool:
    """Return whether the newest attempt of a file says the same: a file that stays is no news."""
    newest = next(iter(reversed(known.by_path.get(file.path, []))), None)
    return (
        newest is not None
        and newest.content_hash == file.content_hash
        and (newest.status, newest.reason) == (status, reason)
    )


def check_landing_manifest(
    manifest: LandingManifest, files: Mapping[str, FoundFile], known: KnownDeliveries
) -> None:
    """Raise Blocked unless the files are those that the landing manifest lists.

    A listed file that was landed before may be gone; a file that was landed before may be there.
    """
    expected = {one.path: one for one in manifest.files}
    missing: list[str] = []
    counted = Counter(one.path for one in manifest.files)
    faults = [f"{path} is listed {count} times" for path, count in counted.items() if count > 1]
    for path, one in expected.items():
        file, landed = files.get(path), known.landed(path)
        if file is None:
            if landed is None or (one.content_hash or landed.content_hash) != landed.content_hash:
                missing.append(path)
            continue
        if one.size_bytes is not None and one.size_bytes != file.size_bytes:
            faults.append(f"{path} has {file.size_bytes} bytes, not {one.size_bytes}")
        elif one.content_hash is not None and one.content_hash != file.content_hash:
            faults.append(f"{path} has another SHA-256 than the one listed")
    extra = [
        path
        for path, file in files.items()
        if path not in expected and not _was_landed(known, file)
    ]
    texts = [
        f"{len(paths)} {word}: {', '.join(sorted(paths)[:_SHOWN])}"
        for word, paths in (("missing", missing), ("not listed", extra))
        if paths
    ]
    texts += faults[:_SHOWN]
    if texts:
        raise Blocked(
            f"the landing manifest {manifest.id} does not fit the files: {'; '.join(texts)}",
            state="nothing was landed",
            fix="have the producer complete the delivery, or mend the landing manifest",
        )


def _was_landed(known: KnownDeliveries, file: FoundFile) -> bool:
    landed = known.landed(file.path)
    return landed is not None and landed.content_hash == file.content_hash
