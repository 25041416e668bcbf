"""What attribution asks for, what it starts, what it keeps; over an in-memory lake."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Never

import pytest

from lakehouse_backfill.core.evidence import document
from lakehouse_backfill.core.evidence.attribution import (
    ATTRIBUTION,
    AttributionOptions,
    attribute_changes,
)
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.comparison.attribution import Factor
from lakehouse_backfill.domain.plan import PreviousCodePin
from lakehouse_backfill.errors import ApprovalMissing, ConfigError, NotFound, WriteForbidden
from tests.support.fakes.compute import FakeCompute, SilentProgress
from tests.support.fakes.context import PRODUCT, declared
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import content_of, planned_run, published_run, staged_run, world

pytestmark = pytest.mark.req("Q5")

CODE = Factor(cause="code")
DAYS = ("2020-01-02", "2020-01-03")


def _lake() -> tuple[FakeLake, FakeCompute, Context]:
    where, found = world(factors=(CODE,), patterns={(0, 0, 0, 3, 3): 6, (0, 1, 1, 1, 1): 1})
    return where, found.compute(), found


def _no_engine(found: Context) -> Context:
    def start() -> Never:
        raise AssertionError("an engine was started")

    return dataclasses.replace(found, compute=start)


OTHER = declared(run={"reason": "again"})


def test_a_known_maker_is_repeated_on_its_own_pins_and_the_result_is_kept() -> None:
    where, compute, found = _lake()
    first = published_run(found)
    where.tables["bronze.raw"].commit({"2020-01-01": frozenset({"raw-2"})})
    second = staged_run(found, OTHER)
    keys = {"bronze.raw": ("day", "id")}
    compared, done = attribute_changes(found, second, AttributionOptions(keys=keys), "bob")
    assert [one for request in compute.swaps for one in request.partitions] == list(DAYS)
    (asked, _) = compute.swaps
    assert (asked.old and asked.old.run_id, asked.new.run_id) == (first, second)
    assert [pin.snapshot_id for pin in asked.old_pins] == [1]
    assert [pin.snapshot_id for pin in asked.new.resolved.sources] == [2]
    assert asked.published.snapshot_id == where.tables[PRODUCT].head
    assert asked.keys == {"raw": ("day", "id")}
    assert done.counts == {"code": 12, "live_write": 2}
    assert (done.changed_rows, done.sampled, done.old) == (2, DAYS, compared.diff.old)
    assert found.evidence.newest(second, ATTRIBUTION)[1] == done.data()  # type: ignore[index]
    assert document.evidence_document(found, second)["attribution"]["counts"] == done.counts


@pytest.mark.req("T9")
@pytest.mark.parametrize(
    ("values", "rows", "asked"),
    [
        ((0, 0, 0, 3, 3), 1, [DAYS]),
        # Counted otherwise than by the diff, or not explained: each partition by itself.
        ((0, 0, 0, 3, 3), 2, [DAYS, *((day,) for day in DAYS)]),
        ((0, 0, 0, 0, 4), 1, [DAYS, *((day,) for day in DAYS)]),
    ],
)
def test_partitions_of_a_chunk_with_the_same_origin_are_computed_together(
    values: tuple[int, ...], rows: int, asked: list[tuple[str, ...]]
) -> None:
    _, found = world(factors=(CODE,), patterns={values: rows})
    published_run(found)
    two = {"partitions_per_chunk": 2}
    second = staged_run(found, declared(run={"reason": "again"}, limits=two))
    _, done = attribute_changes(found, second, AttributionOptions(), "bob")
    assert [request.partitions for request in found.compute().swaps] == asked
    assert [(one.partition, one.changed_rows) for one in done.partitions] == [
        (day, rows) for day in DAYS
    ]
    causes = {group.cause for one in done.partitions for group in one.groups}
    assert causes == {"unexplained" if values[-1] == 4 else "code"}


def test_no_engine_is_started_where_nothing_differs() -> None:
    where, _, found = _lake()
    published_run(found)
    second = staged_run(found, OTHER)
    shadow = where.tables[found.runs.plan(second).shadow_table]
    shadow.commit(content_of(where))
    _, done = attribute_changes(_no_engine(found), second, AttributionOptions(), "bob")
    assert (done.partitions, done.counts, done.data()["sampled_share"]) == ((), {}, 1.0)


def test_without_a_maker_and_without_history_all_is_unexplained_and_says_why() -> None:
    _, _, found = _lake()
    run_id = staged_run(found)
    _, done = attribute_changes(_no_engine(found), run_id, AttributionOptions(partitions=1), "bob")
    (part,) = done.partitions
    assert (part.basis, part.made_by) == ("none", None)
    assert [(group.cause, group.rows) for group in part.groups] == [("unexplained", 1)]
    assert part.notes
    assert (done.sampled_rows, done.changed_rows, done.changed_partitions) == (1, 2, 2)


NAMED = PreviousCodePin(
    name="daily", version="0.9.0", file="jobs/old.py", git_commit="4" * 40, code_hash="f00d",
    files={"jobs/old.py": hashlib.sha256(b"old").hexdigest()},
)  # fmt: skip


def named_code(**previous: Any) -> Any:
    wanted = {"file": "jobs/old.py", "git_commit": "4444444"} | previous
    return dataclasses.replace(declared(previous_code=wanted), previous_code=NAMED)


def _with_repository(found: Context, data: bytes = b"old") -> Context:
    return dataclasses.replace(found, committed_files=lambda commit: {"jobs/old.py": data})


def test_rows_that_no_run_made_are_computed_by_the_code_that_the_manifest_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, compute, found = _lake()
    found = _with_repository(found)
    run_id = staged_run(found, named_code(config={"rate": 2}))
    monkeypatch.setattr(where, "drifts", lambda *_: _raise(NotFound("the commits are gone")))
    _, done = attribute_changes(found, run_id, AttributionOptions(partitions=1), "bob")
    (asked,) = compute.swaps
    transform = asked.old.resolved.manifest.transform
    assert (transform.version, transform.file, transform.config) == (
        "0.9.0", "jobs/old.py", {"rate": 2},
    )  # fmt: skip
    assert asked.old.resolved.code_hash == "f00d"
    assert asked.old_pins == asked.new.resolved.sources
    (part,) = done.partitions
    assert (part.basis, part.made_by, part.not_reproduced) == ("named", None, 1)
    assert part.named_code == "jobs/old.py of git commit 444444444444 (daily 0.9.0, code f00d)"
    assert "named by the manifest, on the inputs of this run" in part.notes[0]
    assert part.notes[1].startswith("that code does not give the old values of 1 of 7 changed")


def test_named_code_that_fails_explains_nothing_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, compute, found = _lake()
    run_id = staged_run(_with_repository(found), named_code())

    def writes(request: Any) -> Never:
        file = request.old.resolved.manifest.transform.file
        tried = {"sink": "network", "what": "socket.connect", "file": file, "line": 3}
        raise WriteForbidden(f"{file} tried to write", data={"attempts": [tried]})

    monkeypatch.setattr(where, "drifts", lambda *_: _raise(NotFound("the commits are gone")))
    compute.swap = writes  # type: ignore[method-assign]
    _, done = attribute_changes(found, run_id, AttributionOptions(partitions=1), "bob")
    (part,) = done.partitions
    assert done.counts == {"unexplained": 1}
    assert (part.basis, part.made_by, part.not_reproduced) == ("none", None, None)
    assert part.named_code == str(NAMED)
    assert part.notes[-1] == "jobs/old.py tried to write"
    (attempt,) = document.evidence_document(found, run_id)["attempts"]
    assert (attempt["file"], attempt["line"], attempt["during"]) == (
        "jobs/old.py",
        3,
        "attribution",
    )


def _raise(error: Exception) -> Never:
    raise error


class Said(SilentProgress):
    """Notes what is said, and when the work begins."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, label: str, total: int, unit: str) -> None:
        self.lines.append(label)

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_that_the_old_code_is_not_known_is_said_in_one_line_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, _, found = _lake()
    run_id, said = staged_run(found), Said()
    monkeypatch.setattr(where, "drifts", lambda *_: _raise(NotFound("the commits are gone")))
    found = dataclasses.replace(_no_engine(found), progress=said)
    attribute_changes(found, run_id, AttributionOptions(), "bob")
    warning, begun = said.lines
    assert warning.startswith("no run made the old rows of 2 of 2 sampled partitions")
    assert ("previous_code" in warning, "\n" in warning, begun) == (True, False, "attributing")


def test_nothing_is_said_before_the_work_where_the_manifest_names_the_old_code() -> None:
    _, _, found = _lake()
    run_id, said = staged_run(_with_repository(found), named_code()), Said()
    attribute_changes(
        dataclasses.replace(found, progress=said), run_id, AttributionOptions(), "bob"
    )
    assert said.lines == ["attributing"]


def test_where_an_earlier_run_made_the_rows_its_own_code_is_used() -> None:
    _, compute, found = _lake()
    first = published_run(found)
    second = staged_run(_with_repository(found), named_code())
    _, done = attribute_changes(found, second, AttributionOptions(partitions=1), "bob")
    assert [request.old.run_id for request in compute.swaps if request.old] == [first]
    (part,) = done.partitions
    assert (part.basis, part.made_by, part.named_code) == ("run", first, None)


def test_the_named_code_is_pinned_and_archived_with_the_plan() -> None:
    _, _, found = _lake()
    found = _with_repository(found)
    plain = make_plan(found, declared(), "bob", None)
    plan = make_plan(found, named_code(), "bob", None)
    assert plan.manifest_hash != plain.manifest_hash
    other = NAMED.model_copy(update={"code_hash": "beef"})
    edited = dataclasses.replace(named_code(), previous_code=other)
    assert make_plan(found, edited, "bob", None).manifest_hash != plan.manifest_hash
    assert any("the manifest names it, no run proves it" in note for note in plan.notes)
    register_plan(found, plan, "bob")
    assert {one["file"] for one in job_code.archived_code(found, plan.run_id)} == {"jobs/daily.py"}
    assert job_code.archived_texts(found, plan.run_id)[1:] == [
        {"file": "jobs/old.py", "sha256": hashlib.sha256(b"old").hexdigest(), "text": "old"}
    ]


def test_named_code_that_is_other_code_by_then_is_not_archived() -> None:
    _, _, found = _lake()
    plan = make_plan(found, named_code(), "bob", None)
    with pytest.raises(ApprovalMissing, match=r"jobs/old\.py was edited"):
        register_plan(_with_repository(found, b"another"), plan, "bob")
    with pytest.raises(NotFound, match="no git repository"):
        register_plan(found, plan, "bob")


def test_named_code_does_not_go_with_a_merge() -> None:
    _, _, found = _lake()
    wanted = named_code()
    target = {"publish_mode": "merge", "merge": {"version": "amount"}}
    manifest = declared(
        target=target, previous_code={"file": "jobs/old.py"}, validation={"edge_partitions": 0}
    ).manifest
    with pytest.raises(ConfigError, match=r"does not go with target\.publish_mode merge") as error:
        make_plan(found, dataclasses.replace(wanted, manifest=manifest), "bob", None)
    assert error.value.field == "previous_code"


def test_code_that_is_not_kept_is_no_reason_to_say_nothing() -> None:
    _, compute, found = _lake()
    first = published_run(found)
    second = staged_run(found, OTHER)

    def gone(request: Any) -> Never:
        raise ApprovalMissing(f"{request.old.run_id}: its code is gone")

    compute.swap = gone  # type: ignore[method-assign]
    _, done = attribute_changes(found, second, AttributionOptions(), "bob")
    assert done.counts == {"unexplained": 2}
    assert done.partitions[0].made_by == first
    assert done.partitions[0].notes == (f"{first}: its code is gone",)


def test_a_snapshot_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    where, _, found = _lake()
    first = published_run(found)
    second = staged_run(found, OTHER)
    resolve = where.resolve

    def expired(ref: Any) -> Any:
        if ref.table == "bronze.raw":
            raise NotFound("bronze.raw has no snapshot 1 any more")
        return resolve(ref)

    monkeypatch.setattr(where, "resolve", expired)
    _, done = attribute_changes(_no_engine(found), second, AttributionOptions(), "bob")
    part = done.partitions[0]
    assert (part.basis, part.made_by) == ("none", first)
    assert part.notes == (f"what {first} read is gone: bronze.raw@1",)


def test_a_run_without_a_candidate_has_nothing_to_attribute() -> None:
    _, _, found = _lake()
    with pytest.raises(NotFound, match="no staged candidate"):
        attribute_changes(found, planned_run(found), AttributionOptions(), "bob")
