"""What a transform rejected is kept once more after a kill, and told once; see docs/checks.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse_backfill.core.staging.rejects import row_seal
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RejectedRow, Rejects
from lakehouse_backfill.errors import ChecksFailed
from tests.chaos.engine import PlainEngine
from tests.contract.test_run_files import approved
from tests.support.lakes.retention import WHO, RetentionLake

ALLOWED = "safety: {max_rejected_share: 0.9}\n"


def rejects(engine: PlainEngine, plan: Plan, chunk: Chunk) -> Rejects:
    row = RejectedRow(reason="late", key={"k": 1}, record={"k": 1, "v": chunk.partitions[0]})
    return Rejects(rows=2, reasons={"late": 2}, records=(row,))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionLake:
    monkeypatch.setattr(PlainEngine, "rejects", rejects)
    return RetentionLake(tmp_path)


def kept(lake: RetentionLake, run: str) -> dict[str, list[Any]]:
    """The records of each chunk, as a reader finds them: those with the newest time."""
    table = lake.catalog.load_table("lakehouse_backfill.reject_record").scan().to_arrow()
    rows = [row for row in table.to_pylist() if row["run_id"] == run]
    newest: dict[str, Any] = {}
    for row in rows:
        at = newest.get(row["chunk_id"])
        newest[row["chunk_id"]] = max(at, row["rejected_at"]) if at else row["rejected_at"]
    found: dict[str, list[Any]] = {}
    for row in rows:
        if row["rejected_at"] == newest[row["chunk_id"]]:
            assert (row["reason"], json.loads(row["record_key"])) == ("late", {"k": 1})
            found.setdefault(row["chunk_id"], []).append(json.loads(row["record"])["v"])
    return found


@pytest.mark.in_turn
@pytest.mark.req("X5", "X2")
@pytest.mark.parametrize(
    "point",
    [
        "Runs.record_rejects:before",
        "ControlLog.reject_record:committing",
        "ControlLog.reject_record:committed",
        "Runs.record_rejects:after",
        "Runs.record_chunk:before",
    ],
)
def test_a_kill_beside_the_rejected_rows_loses_and_doubles_none(
    lake: RetentionLake, point: str
) -> None:
    run = approved(lake, ALLOWED)
    with lake.killed_at(point):
        lake.project.stage(run, WHO)
    lake.later(0.01)
    lake.project.stage(run, WHO)
    ledger = lake.project.wiring.context.runs.chunks(run)
    assert [(one.rejected_rows, one.reject_reasons) for one in ledger] == [(2, ("2 late",))] * 3
    assert kept(lake, run) == {one.chunk_id: [one.partitions[0]] for one in ledger}
    found = lake.project.validate(run, WHO).to_dict()
    (gate,) = [one for one in found["checks"] if one["name"] == "rejected rows are in range"]
    assert gate["passed"]
    assert gate["detail"].endswith("at most 90.00%: 6 late")


def _edit(lake: RetentionLake, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change stored rejected rows where they lie: no commit tells of it."""
    tasks = lake.catalog.load_table("lakehouse_backfill.reject_record").scan().plan_files()
    for task in tasks:
        path = Path(task.file.file_path.removeprefix("file://"))
        held = pq.read_table(path)
        rows = held.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, held.schema), path)


def _other_record(rows: list[dict[str, Any]]) -> None:
    rows[0]["record"] = "{}"


def _sealed_again(rows: list[dict[str, Any]]) -> None:
    _other_record(rows)
    rows[0]["seal"] = row_seal(rows[0])


EDITS: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "edited": (_other_record, 'the row with the key {"k":1} was edited since'),
    "edited, and sealed again": (_sealed_again, "some were edited, added or removed"),
    "removed": (lambda rows: rows.clear(), "the 0 rows stored are not those"),
    "added": (lambda rows: rows.append(dict(rows[0])), "the 2 rows stored are not those"),
}


@pytest.mark.req("X5", "V4")
@pytest.mark.parametrize("name", EDITS)
def test_rejected_rows_that_were_changed_afterwards_are_named(
    lake: RetentionLake, name: str
) -> None:
    change, expected = EDITS[name]
    run = approved(lake, ALLOWED)
    with lake.killed_at("Runs.record_rejects:after"):
        lake.project.stage(run, WHO)
    assert lake.open().audit_verify().first_bad is None
    lake.later(0.01)
    for verb in ("stage", "validate", "accept", "publish"):
        getattr(lake.project, verb)(run, WHO)
    assert lake.project.audit_verify().first_bad is None
    assert lake.project.verify(run).intact
    _edit(lake, change)
    project = lake.open()
    found = project.audit_verify()
    assert (found.intact, found.error().exit_code) == (False, 3)
    assert found.first_bad.startswith("reject_record, chunk c000")
    assert run in found.first_bad
    assert expected in found.first_bad
    checks = {one.name: one for one in project.verify(run).checks if one.ok is False}
    assert expected in str(checks["log and pointers"].found)


@pytest.mark.req("X5", "V4")
def test_a_ledger_that_was_edited_to_fit_is_not_what_was_accepted(lake: RetentionLake) -> None:
    run = approved(lake, ALLOWED)
    for verb in ("stage", "validate", "accept"):
        getattr(lake.project, verb)(run, WHO)
    context = lake.project.wiring.context
    record = context.runs.chunks(run)[0]
    context.runs.record_chunk(record.model_copy(update={"rejected_rows": 1}))
    failed = [one.name for one in lake.open().verify(run).checks if one.ok is False]
    assert "chunk ledger" in failed


@pytest.mark.req("X5", "Q1")
def test_more_than_allowed_halts_the_run_at_the_first_chunk(lake: RetentionLake) -> None:
    run = approved(lake, "safety: {max_rejected_share: 0.1}\n")
    with pytest.raises(ChecksFailed, match=r"Is the share of rejected rows allowed\? 2 of .* late"):
        lake.project.stage(run, WHO)
    assert len(lake.project.wiring.context.runs.chunks(run)) == 1
    assert lake.project.status(run).runs[0].state == "halted"
