"""The mode of a run is in every log line, every metric and the summary of every output snapshot."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

import lakehouse_backfill
from lakehouse_backfill.adapters.system.journal import JsonJournal
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.manifest import RunMode
from lakehouse_backfill.domain.monitoring.metrics import METRICS
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.domain.sources.landings import LandingRequest, LandingState
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.fakes.steps import accepted_run, roll_back

pytestmark = pytest.mark.req("V2")
PACKAGE = Path(lakehouse_backfill.__file__).parent
#: Lines that no run writes: their mode is `none`.
OF_NO_RUN = {
    ("wiring/metrics.py", "metrics not exported"),
    ("wiring/adapters.py", "no view"),
    ("report/page.py", "index not written"),
    ("core/retention/maintain.py", "maintained"),
    ("core/publication/recover.py", "pointer rebuilt"),
    ("core/comparison/diff.py", "fingerprints not asked"),
}
#: What gives a journal the mode: the labels of a plan, a look for the run's plan, or the mode.
LABELLING = (".labels)", ".journal_of(", ".bind(processing_mode=")
#: How a snapshot is written, and what hands the summary on to such a call.
WRITES = ("update_snapshot", "write_snapshot")
#: Modules that write snapshots, and where the mode in their summaries comes from.
SNAPSHOTS = {
    "adapters/iceberg/commit/corrections.py": "own",
    "adapters/iceberg/commit/version_tables.py": "own",
    "adapters/iceberg/landing/raw_tables.py": "own",
    "adapters/iceberg/landing/handler_tables.py": "own",
    "adapters/iceberg/landing/migrated_tables.py": "own",
    "adapters/iceberg/commit/swap.py": "of the request: adopt and revert, below",
    "adapters/spark/commits/java_commits.py": "of the same request",
    "adapters/spark/dataframes.py": "of the request, or of shadow_writer: tests/lake/test_staging",
    "adapters/spark/kept_tables.py": "own",
    "adapters/iceberg/control/log_files.py": "a control table: its rows have the mode",
    "adapters/iceberg/capabilities.py": "a probe, which is dropped",
    "adapters/iceberg/shadow/branches.py": "the first snapshot of a branch, which has no rows",
}


@cache
def modules() -> dict[str, ast.Module]:
    found = {file.relative_to(PACKAGE).as_posix(): file for file in PACKAGE.rglob("*.py")}
    return {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in found.items()}


def calls(tree: ast.Module, *names: str) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in names:
            yield node, ast.unparse(node.func.value)


def unlabelled_lines(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of log lines that say nothing of a mode."""
    labelled = {
        ast.unparse(node.targets[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(one in ast.unparse(node) for one in LABELLING)
    }
    for call, receiver in calls(tree, "log", "span"):
        is_labelled = receiver in labelled or any(one in receiver for one in LABELLING)
        if "journal" in receiver and not is_labelled:
            yield ast.literal_eval(call.args[0]) if call.args else ast.unparse(call)


def test_every_log_line_of_the_package_has_the_mode_of_its_run_or_is_of_no_run() -> None:
    found = {(name, text) for name, tree in modules().items() for text in unlabelled_lines(tree)}
    assert found == OF_NO_RUN


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("context.journal.log('moved', run_id=run)", ["moved"]),
        ("self._journal.span('works')", ["works"]),
        ("journal = context.journal.bind(run_id=run)\njournal.log('moved')", ["moved"]),
        ("context.journal.bind(**plan.labels).log('moved')", []),
        ("journal = context.journal_of(run)\njournal.span('moved')", []),
    ],
)
def test_a_new_line_without_a_mode_is_found(code: str, expected: list[str]) -> None:
    assert list(unlabelled_lines(ast.parse(code))) == expected


def test_a_line_is_never_without_a_mode(tmp_path: Path) -> None:
    journal = JsonJournal(tmp_path)
    journal.log("maintained")
    journal.bind(run_id="bf-1").log("damaged")
    journal.bind(run_id="bf-1", processing_mode="replay").log("moved")
    (file,) = (tmp_path / ".lakehouse-backfill/logs").iterdir()
    found = [json.loads(line)["processing_mode"] for line in file.read_text().splitlines()]
    assert found == ["none", "unknown", "replay"]


def test_every_metric_has_the_label_mode() -> None:
    assert [one.name for one in METRICS if "mode" not in one.labels] == []


def test_every_module_that_writes_snapshots_is_known_to_give_them_the_mode() -> None:
    writers = {
        name
        for name, tree in modules().items()
        if any(calls(tree, *WRITES)) or "snapshot-property." in ast.unparse(tree)
    }
    assert writers == set(SNAPSHOTS)
    for name, whence in SNAPSHOTS.items():
        if whence == "own":
            assert "MODE_PROPERTY:" in ast.unparse(modules()[name]), name


@pytest.mark.parametrize("mode", ["backfill", "replay"])
def test_what_is_published_and_what_takes_it_back_have_the_mode(mode: str) -> None:
    where = lake()
    found = context(where)
    kind = {"kind": "replay"} if mode == "replay" else {}
    run_id = accepted_run(found, declared(run={"mode": mode, **kind}))
    publish(found, run_id, "ana")
    assert where.tables[PRODUCT].summaries[-1][MODE_PROPERTY] == mode
    roll_back(found)
    assert where.tables[PRODUCT].summaries[-1][MODE_PROPERTY] == mode
    assert {event.mode for event in found.runs.events(run_id)} == {mode}
    assert {line["processing_mode"] for line in _lines(found) if line.get("run_id")} == {mode}


def test_a_line_of_a_run_whose_plan_cannot_be_read_has_its_id() -> None:
    found = context(lake())
    run_id = accepted_run(found)
    found.journal_of(run_id).log("moved")
    found.journal_of("no-such-run").log("looked")
    found.journal_of(None).log("looked")
    moved, *others = _lines(found)[-3:]
    assert (moved["run_id"], moved["processing_mode"]) == (run_id, "backfill")
    assert others == [{}, {}]


def test_a_landing_is_live_and_one_that_reads_all_again_a_reconciliation() -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    state = LandingState(landing_id="l", source="s", request=LandingRequest(), started_at=now)
    again = state.model_copy(update={"request": LandingRequest(reconcile=True)})
    assert (state.mode, again.mode) == ("live", "reconciliation")
    assert {"live", "reconciliation", "replay", "backfill"} <= set(get_args(RunMode))


def _lines(found: Context) -> list[dict[str, Any]]:
    lines: list[tuple[str, dict[str, Any]]] = found.journal.lines  # type: ignore[attr-defined]
    return [fields for _, fields in lines]
