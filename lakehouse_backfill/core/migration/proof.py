"""Evidence of a migration: what was found in the old place, and that both sides agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.rollout import QueryComparison
from lakehouse_backfill.domain.sources.migration import (
    MigrationPart,
    MigrationState,
    MigrationSurvey,
)
from lakehouse_backfill.errors import Blocked, ChecksFailed
from lakehouse_backfill.ports.control import Evidence

#: Kinds of documents.
SURVEY, PARTS, PROOF = "migration_survey", "migration_parts", "migration_proof"
#: Parts in one document: a document is one value of a row.
_PARTS_IN_DOCUMENT = 2000
_SHOWN = 5


def record_survey(
    evidence: Evidence, migration_id: str, place: str, survey: MigrationSurvey
) -> str:
    """Record every part with its reason, size, digest and checksums; return the header's digest."""
    parts = survey.parts
    digests = [
        evidence.record(
            migration_id,
            PARTS,
            {"first": first, "parts": [_plain(part) for part in parts[first : first + step]]},
            0,
        )
        for step in (_PARTS_IN_DOCUMENT,)
        for first in range(0, len(parts), step)
    ]
    header = {
        "place": place,
        "parts": digests,
        "adopted": sum(part.action == "adopt" for part in parts),
        "rewritten": sum(part.action == "rewrite" for part in parts),
        "rejected": {part.name: part.because for part in survey.rejected},
        "notes": list(survey.notes),
    }
    return evidence.record(migration_id, SURVEY, header, 0)


def recorded_survey(evidence: Evidence, state: MigrationState) -> MigrationSurvey:
    """Return the survey on which the table was begun; raises Blocked when it is gone."""
    header = evidence.document(state.migration_id, state.survey)
    documents = [
        evidence.document(state.migration_id, each) for each in (header or {}).get("parts", ())
    ]
    if header is None or None in documents:
        raise Blocked(
            f"the survey of {state.migration_id} is not in the evidence any more",
            state="no reader sees a row of the migration",
            fix=f"lakehouse-backfill product migrate {state.migration} --undo, and again",
        )
    parts = tuple(
        MigrationPart.model_validate(part)
        for document in documents
        for part in (document or {})["parts"]
    )
    return MigrationSurvey(parts, tuple(header["notes"]))


def proof_document(
    survey: MigrationSurvey,
    state: MigrationState,
    snapshot_id: int,
    found: tuple[int, Mapping[str, Checksum]],
    answers: tuple[QueryComparison, ...],
) -> dict[str, Any]:
    """Return counts and checksums of both sides by partition, and what else was compared."""
    old, (files, new) = survey.sums, found
    labels = sorted(old.keys() | new.keys())
    return {
        "survey": state.survey,
        "snapshot_id": snapshot_id,
        "rows": sum(one.rows for one in old.values()),
        "files": {"committed": state.files, "listed": files},
        "partitions": {
            label: {
                "rows": [_rows(old.get(label)), _rows(new.get(label))],
                "checksums": [_text(old.get(label)), _text(new.get(label))],
            }
            for label in labels
        },
        "differing": [label for label in labels if not _is_same(old.get(label), new.get(label))],
        "rejected": {part.name: part.because for part in survey.rejected},
        # Without rows that differ: they may hold private values.
        "readers": [
            answer.model_dump(mode="json", exclude={"only_old", "only_new"}) for answer in answers
        ],
    }


def require_agreement(document: Mapping[str, Any], migration: str) -> None:
    """Raise ChecksFailed unless both sides have the same rows, and readers the same answers."""
    faults = [
        f"partition {label or 'of all rows'} differs" for label in document["differing"][:_SHOWN]
    ]
    files = document["files"]
    if files["committed"] != files["listed"]:
        faults.append(f"{files['committed']} files were committed, {files['listed']} are listed")
    faults += [
        f"the query of {answer['reader']} has another answer"
        for answer in document["readers"]
        if not answer["equal"]
    ]
    if faults:
        raise ChecksFailed(
            f"{migration}: the table is not what the old place is: {'; '.join(faults)}",
            state="no reader sees a row of the migration; the evidence has counts and checksums",
            fix=f"lakehouse-backfill product migrate {migration} --undo; then look for the cause",
        )


def _plain(part: MigrationPart) -> dict[str, Any]:
    found: dict[str, Any] = part.model_dump(mode="json", exclude_defaults=True)
    return found


def _is_same(old: Checksum | None, new: Checksum | None) -> bool:
    return old is not None and new is not None and old == new


def _rows(one: Checksum | None) -> int:
    return 0 if one is None else one.rows


def _text(one: Checksum | None) -> str | None:
    return None if one is None else one.text
