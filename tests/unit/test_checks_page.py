"""docs/checks.md says what the gates do, and the list of gates is what the gates give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.gate_registry import GATES
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import Rejects
from tests.support.fakes.context import contract, declared
from tests.support.fakes.steps import staged_run, world

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
COLUMNS = [each.model_dump() for each in contract().columns]
LINEAGE = "`lineage is complete`"


class Row(NamedTuple):
    """One line of the table of the page."""

    name: str
    question: str
    group: str
    when: str
    blocking: str
    about: str
    waivable: str


#: The gates as the page lists them.
ROWS = tuple(
    Row(*(cell.strip() for cell in line.strip("|").split(" | ")))
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line[:3] == "| `"
)


def judged() -> dict[str, list[CheckResult]]:
    """Judge a run that uses whatever a contract and a manifest can ask for."""
    where, found = world(rejected=Rejects(rows=0))
    where.add("privacy.gone", all="nobody")
    compute = found.compute()
    golden = [{"day": "2020-01-02", "id": "1"}]
    found.row_reader.golden = lambda _: golden
    compute.source_totals = lambda *_: tuple(
        CheckResult(
            name=f"rows of {part} equals rows of raw",
            group="reconciliation",
            passed=True,
            detail="",
        )
        for part in ("the candidate", "each partition")
    )
    asked = contract(
        measures=[{"name": "rows", "count": "id"}],
        source_totals=[{"measure": "rows", "source": "raw"}],
        tombstones=[{"table": "privacy.gone", "columns": {"id": "id"}}],
        thresholds=[
            {"measure": "rows", "max_change": 0.2},
            {"measure": "rows", "max_change": 0.2, "each_partition": True},
        ],
        suites=[{"file": "in.json", "on": "raw"}, {"file": "out.json", "on": "output"}],
        assumptions=[{"text": "one row each", "file": "one.json", "on": "raw"}],
        columns=[*COLUMNS, {"name": "mail", "type": "string"}],
        privacy={"columns": {"mail": {"mask": "null"}}},
    )
    spots = [{"key": {"day": "2020-01-02", "id": 1}, "expect": {"amount": 1}}]
    validation = {"edge_partitions": 1, "golden": "golden.csv", "spot_checks": spots}
    wanted = declared(contract=asked, validation=validation)
    run_id = staged_run(found, wanted)
    inputs = found.evidence.newest(run_id, "input-checks")
    chunks = found.evidence.newest(run_id, "chunk-checks")
    repaired, restated, merged = of_modes()
    return {
        "input": [CheckResult.model_validate(one) for one in inputs[1]["checks"]],
        "chunk": [
            CheckResult.model_validate(one)
            for chunk in [*chunks[1]["chunks"], *repaired[0]]
            for one in chunk["checks"]
        ],
        "result": [
            *validate(found, run_id, "bob")[1].checks,
            *repaired[1],
            *restated[1],
            *merged[1],
        ],
    }


def of_modes() -> list[tuple[Any, tuple[CheckResult, ...]]]:
    """Judge runs of named rows, of named columns, and one that merges: chunks, and result."""
    judged = []
    for target in (
        {"row_predicate": {"id": 1}},
        {"columns": ["amount"]},
        {"publish_mode": "merge", "merge": {"version": "amount"}},
    ):
        _, found = world()
        run_id = staged_run(found, declared(target=target))
        chunks = found.evidence.newest(run_id, "chunk-checks")
        judged.append((chunks[1]["chunks"], validate(found, run_id, "bob")[1].checks))
    return judged


def listed_as(check: CheckResult, when: str) -> Iterator[Row]:
    """Find the gates of the page that a result may be of."""
    for gate in ROWS:
        pattern = re.sub(r"[A-Z]{4,}", ".+", re.escape(gate.name.strip("`")))
        if when in gate.when and gate.group == check.group and re.fullmatch(pattern, check.name):
            yield gate


@pytest.mark.req("Q8")
def test_the_page_of_checks_lists_exactly_the_gates() -> None:
    assert [(row.name, row.question, row.group, row.waivable) for row in ROWS] == [
        (
            f"`{gate.name}`",
            gate.question,
            gate.group,
            f"no: {gate.why_not}" if gate.why_not else "yes",
        )
        for gate in GATES
    ]
    assert all(row.blocking and row.about for row in ROWS)


@pytest.mark.req("Q8")
def test_the_page_says_of_each_result_when_it_is_judged_and_whether_it_may_be_waived() -> None:
    seen: set[str] = set()
    for when, checks in judged().items():
        for check in checks:
            gates = list(listed_as(check, when))
            assert gates, f"{check.name} ({check.group}) of the {when} is not listed"
            assert check.waivable in {gate.waivable == "yes" for gate in gates}, check.name
            seen |= {gate.name for gate in gates}
    assert {gate.name for gate in ROWS} - seen <= {LINEAGE}


@pytest.mark.req("Q8")
def test_a_gate_that_cannot_be_waived_cannot_be_turned_into_a_report_either() -> None:
    fixed = {(gate.group, gate.name) for gate in GATES if gate.why_not}
    named = {(gate.group, gate.name) for gate in gate_registry.REPORTABLE_GATES.values()}
    assert not fixed & named


def test_the_list_names_each_gate_once() -> None:
    names = [(gate.group, gate.name) for gate in GATES]
    assert len(names) == len(set(names))
