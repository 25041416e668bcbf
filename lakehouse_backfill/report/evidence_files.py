"""Page and archive of a run as they lie in a folder, against what the lake says (O4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakehouse_backfill.domain.stored import StoredCheck
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.report.page import render_page

EvidenceDocument = Mapping[str, Any]
#: What changes without an event of the run: who reads the archive later sees another one.
_VOLATILE_FIELDS = frozenset({"run", "standing", "dual_reads", "steps"})
#: What an older archive must share with a newer one.
_CONSTANT_FIELDS = ("plan", "scope", "code")


def check_evidence_files(folder: Path, document: EvidenceDocument) -> tuple[StoredCheck, ...]:
    """Compare the run's files in the folder with the document that the lake gives now.

    The archive may be older than the lake: then its events must be the first ones of the log. The
    page must be the one that was written with its checksum, or the one that the archive gives.
    """
    run_id = str(document["run"]["run_id"])
    archive, page = folder / f"{run_id}.json", folder / f"{run_id}.html"
    written = _read_checksums(folder / f"{run_id}.sha256")
    found = []
    if archive.is_file():
        found.append(_check_archive(archive, document))
    if page.is_file():
        found.append(_check_page(page, archive, written))
    if not found:
        because = f"neither {archive.name} nor {page.name} is in {folder}"
        return (StoredCheck(name="evidence files", ok=None, because=because),)
    return tuple(found)


def _read_checksums(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: mark for mark, name in pairs}


def _check_archive(file: Path, document: EvidenceDocument) -> StoredCheck:
    name = f"evidence file {file.name}"
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        differing = _differing_fields(held, document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        because = f"it is no archive any more: {type(error).__name__}"
        return StoredCheck(name=name, ok=False, because=because)
    if differing:
        because = f"it differs from the lake in {', '.join(differing)}"
        return StoredCheck(name=name, ok=False, found=differing, because=because)
    is_older = len(held["events"]) < len(document["events"])
    because = "the lake has later events; what it says is of then" if is_older else "as the lake"
    return StoredCheck(name=name, ok=True, because=because)


def _differing_fields(held: EvidenceDocument, document: EvidenceDocument) -> list[str]:
    events = list(document["events"])[: len(held["events"])]
    names = set(_CONSTANT_FIELDS)
    if len(held["events"]) == len(document["events"]):
        names = (set(held) | set(document)) - _VOLATILE_FIELDS
    wrong = [name for name in sorted(names) if held.get(name) != document.get(name)]
    if list(held["events"]) != events:
        wrong.append("events")
    if held.get("validation") is not None and digest(held["validation"]) != held.get(
        "validation_digest"
    ):
        wrong.append("validation")
    return sorted(set(wrong))


def _check_page(file: Path, archive: Path, written: Mapping[str, str]) -> StoredCheck:
    name, data = f"evidence file {file.name}", file.read_bytes()
    mark = hashlib.sha256(data).hexdigest()
    if written.get(file.name) == mark:
        return StoredCheck(name=name, ok=True, expected=mark, found=mark, because="its checksum")
    try:
        text = render_page(json.loads(archive.read_text(encoding="utf-8")))
        made = text.encode("utf-8", "backslashreplace")
    except (OSError, ValueError, KeyError, TypeError):
        made = b""
    if data == made:
        return StoredCheck(name=name, ok=True, because="it is what the archive gives")
    return StoredCheck(
        name=name,
        ok=False,
        expected=written.get(file.name),
        found=mark,
        because="it was edited: it has another checksum, and is not what the archive gives",
    )
