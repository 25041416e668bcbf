"""Each anti-pattern is refused, and the message says what to do instead; the page says where."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lakehouse_backfill.core.guards import anti_patterns
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Fault, IllegalMove
from tests.support.examples.declarations import MANIFEST, changed
from tests.support.fakes.steps import published_run, staged_run, state_of, world
from tests.unit.config.test_manifests import faults

pytestmark = pytest.mark.req("T11")
REPOSITORY = Path(__file__).resolve().parents[2]
#: As the page and the tests name them.
ANTI_PATTERN_NAMES = (
    "production consumer group",
    "live topic",
    "no transform version",
    "no input range",
    "no reference version",
    "delete-and-insert",
    "validation after publish only",
    "last writer wins",
    "just rerun the DAG",
)
PAGE = REPOSITORY / "docs/anti-patterns.md"


CONSUMER = ("production consumer group", "land the")
TOPIC = ("live topic", "target.corrections.table")
UNPINNED = ("no reference version", "leave `at` out: plan pins what is there now")
DELETING = ("delete-and-insert", "publish_mode: replace_partitions: old rows go and new rows")
#: what a person might write -> field, what stands there now, anti-pattern, what to do instead
REFUSED = {
    "  flights:\n    type: kafka\n": ("sources.flights.type", "  flights:\n", *CONSUMER),
    "  flights:\n    consumer_group: orders-live\n": (
        "sources.flights.consumer_group", "  flights:\n", *CONSUMER,
    ),
    "target:\n  topic: orders\n": ("target.topic", "target:\n", *TOPIC),
    "target:\n  publish_mode: kafka\n": ("target.publish_mode", "target:\n", *TOPIC),
    "at: latest": ("reference_data.airports.at", "at: complete", *UNPINNED),
    "at: current": ("reference_data.airports.at", "at: complete", *UNPINNED),
    **{
        f"target:\n  publish_mode: {word}\n": ("target.publish_mode", "target:\n", *DELETING)
        for word in ("delete-insert", "truncate_insert", "overwrite")
    },
    "validation:\n  when: after\n": (
        "validation.when", "validation:\n", "validation after publish only", "PRODUCT@accepted",
    ),
    **{
        f"safety: {{on_conflict: {word}}}\nvalidation:\n": (
            "safety.on_conflict", "validation:\n", "last writer wins",
            "fail (the conflict is named) or catch_up",
        )
        for word in ("last_writer_wins", "force", "overwrite")
    },
    "run:\n  kind: rerun-dag\n": (
        "run.kind", "run:\n", "just rerun the DAG", "run.kind: reprocessing, with pinned sources",
    ),
}  # fmt: skip


def one(folder: Path, field: str, old: str, new: str) -> Fault:
    """The fault of a field, once `old` of the right manifest is replaced by `new`."""
    (found,) = [item for item in faults(folder, changed(MANIFEST, old, new)) if item.field == field]
    return found


@pytest.mark.parametrize("written", REFUSED)
def test_an_anti_pattern_in_the_manifest_is_refused_by_its_name(
    tmp_path: Path, written: str
) -> None:
    field, old, name, instead = REFUSED[written]
    fault = one(tmp_path, field, old, written)
    assert f"(anti-pattern: {name})" in fault.problem
    assert instead in fault.fix


def test_a_transform_without_a_version_is_refused(tmp_path: Path) -> None:
    fault = one(tmp_path, "transform.version", "  version: 1.2.0\n", "")
    assert "is missing" in fault.problem
    assert "add `version:`" in fault.fix


def test_a_source_without_a_range_is_refused(tmp_path: Path) -> None:
    text = MANIFEST[MANIFEST.index("    range:\n") : MANIFEST.index("      to: 2013-04-05")]
    rest = "      to: 2013-04-05T00:00:00Z\n"
    fault = one(tmp_path, "sources.flights.range", text + rest, "")
    assert "is missing" in fault.problem
    assert "Rows that may be read at most" in fault.fix


def test_validation_after_publish_only_is_refused_when_publishing() -> None:
    _, found = world()
    run_id = staged_run(found)
    with pytest.raises(IllegalMove) as refused:
        publish(found, run_id, "bob")
    assert f"lakehouse-backfill validate {run_id}" in refused.value.fix
    assert "acted on already" in refused.value.fix
    assert state_of(found, run_id) is RunState.STAGED


def test_just_rerun_the_dag_is_refused_for_a_run_that_was_published() -> None:
    _, found = world()
    run_id = published_run(found)
    with pytest.raises(IllegalMove) as refused:
        stage(found, run_id, "bob")
    assert f"lakehouse-backfill plan --revise {run_id}" in refused.value.fix
    assert state_of(found, run_id) is RunState.PUBLISHED


def test_the_page_names_each_anti_pattern_with_tests_that_are_there() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]
    assert [row[0] for row in table] == list(ANTI_PATTERN_NAMES)
    for name, where, instead, tests in table:
        assert where, name
        assert instead, name
        named = re.findall(r"`([^`]+\.py)::(test_\w+)`", tests)
        assert named, name
        for file, function in named:
            tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
            there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function in there, (file, function)


def test_the_page_says_what_the_messages_say() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for wish in anti_patterns.ANTI_PATTERNS:
        assert wish.name in ANTI_PATTERN_NAMES
        field = ".".join("NAME" if step == anti_patterns.ANY_NAME else step for step in wish.path)
        assert f"`{field}`" in text, field
