"""The rules of `ports/control.py`, on the fakes and on PyIceberg."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.core.runs import event_log as audit_rules
from lakehouse_backfill.core.runs.lifecycle import next_event
from lakehouse_backfill.core.staging import rejects
from lakehouse_backfill.domain import publication as pointer_rules
from lakehouse_backfill.domain.cascade.graph import CandidatePin
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import RejectedCount, RejectedGroup, RunState, RunStatus
from lakehouse_backfill.domain.serialization import canonical_json, digest
from lakehouse_backfill.errors import NotFound, RunMoved, Tampered
from lakehouse_backfill.ports.control import Evidence, Runs, Versions
from tests.support.examples.plans import (
    NOON,
    a_first_event,
    a_plan,
    an_event,
    plan_of,
    with_fields,
)
from tests.support.fakes.control import FakeEvidence, FakeRuns, FakeVersions, Fences
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import (
    LATER,
    PRODUCT,
    a_chunk,
    a_row,
    bare,
    begun,
    control_ports,
    move,
    put,
)


@pytest.fixture(params=["fake", "iceberg"])
def control(request, tmp_path: Path):
    """The four ports on one implementation."""
    if request.param == "fake":
        fences = Fences()
        versions = FakeVersions(fences)
        runs = FakeRuns(versions, fences)
        return SimpleNamespace(
            runs=runs, audit=runs, versions=versions, evidence=FakeEvidence(fences),
        )  # fmt: skip
    return control_ports(catalog_of(tmp_path))


@pytest.fixture
def runs(control) -> Runs:
    return control.runs


@pytest.fixture
def versions(control) -> Versions:
    return control.versions


@pytest.fixture
def evidence(control) -> Evidence:
    return control.evidence


# --- runs -------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_run(control):
    assert control.runs.list() == ()
    assert control.runs.list(open_only=False) == ()
    assert control.runs.events("bf-1") == ()
    assert control.runs.chunks("bf-1") == ()
    assert control.versions.pointer(PRODUCT) == Pointer()
    assert control.versions.history(PRODUCT) == ()
    assert control.versions.pending() == ()
    assert control.evidence.newest("bf-1", "validation") is None
    assert control.evidence.document("bf-1", "d") is None
    assert control.audit.drafts() == ()
    assert control.audit.chains() == {}
    assert control.audit.products() == {}
    assert control.audit.bad_plans() == {}
    with pytest.raises(NotFound):
        control.runs.status("bf-1")
    with pytest.raises(NotFound):
        control.runs.plan("bf-1")


@pytest.mark.req("V3", "C1")
def test_a_registered_run_gives_back_its_plan_status_and_first_event(runs: Runs):
    plan = a_plan()
    event = a_first_event(plan)
    status = runs.register(plan, event)
    (stored,) = runs.events("bf-1")
    assert stored == event.model_copy(update={"product": PRODUCT, "hash": stored.hash})
    assert status == RunStatus(
        run_id="bf-1", product=PRODUCT, state=RunState.PLANNED, seq=1, at=NOON, head=stored.hash
    )
    assert runs.status("bf-1") == status
    loaded = runs.plan("bf-1")
    assert loaded == plan
    assert loaded.resolved.manifest_hash == plan.manifest_hash
    assert loaded.registered_digest == plan.registered_digest


@pytest.mark.req("P4")
def test_a_plan_reads_the_candidates_that_the_log_names_last_and_keeps_its_hash(runs: Runs):
    pin = a_plan().resolved.sources[0]
    candidate = CandidatePin(
        run_id="bf-0", manifest_hash="a" * 64, product="bronze.flights",
        product_table="bronze.flights", table=pin.table, snapshot_id=pin.snapshot_id,
    )  # fmt: skip
    planned = pin.model_copy(update={"candidate": candidate})
    resolved = a_plan().resolved.model_copy(update={"sources": (planned,)})
    plan = plan_of(resolved, manifest_file="m.yaml", shadow_table="shadow.s")
    runs.register(plan, a_first_event(plan))
    assert runs.plan("bf-1") == plan
    assert not runs.plan("bf-1").resolved.sources[0].is_bound
    move(runs, "bf-1", "approve")
    for snapshot_id in (7, 8_700_000_000_000_000_009):
        state = {"table": "shadow.bf_0", "snapshot_id": snapshot_id}
        move(runs, "bf-1", "bind inputs", inputs={pin.name: state})
        bound = runs.plan("bf-1").resolved.sources[0]
        assert bound == planned.model_copy(update=state)
        assert bound.is_bound
        assert runs.plan("bf-1").resolved.manifest_hash == plan.manifest_hash


@pytest.mark.req("P1")
def test_the_newest_runs_are_read_with_their_logs_and_ledgers_in_their_order(runs: Runs):
    plans = [a_plan(f"bf-{number}") for number in range(1, 4)]
    other = with_fields(a_plan("bf-other"), resolved__manifest__transform__name="other")
    other = other.model_copy(update={"manifest_hash": other.resolved.manifest_hash})
    for plan in (*plans, other):
        runs.register(plan, a_first_event(plan))
    runs.record_chunk(a_chunk("c1", run_id="bf-3"))
    runs.record_chunk(a_chunk("c1", rows=7, run_id="bf-3"))
    found = runs.recorded("arrivals", 2)
    assert [one.plan.run_id for one in found] == ["bf-2", "bf-3", "bf-other"]
    assert [one.events for one in found] == [runs.events(one.plan.run_id) for one in found]
    assert [one.chunks for one in found] == [(), runs.chunks("bf-3"), ()]
    assert found[1].chunks[0].output_rows == 7
    assert [one.plan.run_id for one in runs.recorded("unheard of", 1)] == ["bf-other"]


@pytest.mark.req("V3")
def test_a_run_id_that_exists_cannot_be_registered_again(runs: Runs):
    begun(runs)
    with pytest.raises(RunMoved, match="registered already"):
        begun(runs)
    assert len(runs.events("bf-1")) == 1


def test_a_run_begins_with_its_own_first_event(runs: Runs):
    with pytest.raises(ValueError, match="does not begin"):
        runs.register(a_plan("bf-1"), a_first_event(a_plan("bf-2")))


@pytest.mark.req("V3")
def test_an_event_moves_the_run_and_stands_at_the_end_of_its_log(runs: Runs):
    after = begun(runs, driver="host:1", hash="abc", who=["ann", "bob"])
    assert after.state is RunState.STAGING
    assert after.driver == "host:1"
    assert runs.status("bf-1") == after
    log = runs.events("bf-1")
    assert [(one.seq, one.verb) for one in log] == [
        (1, "plan"),
        (2, "approve"),
        (3, "begin staging"),
    ]
    assert log[1].detail == {"hash": "abc", "who": ["ann", "bob"]}


@pytest.mark.req("V3")
@pytest.mark.parametrize("seq", [1, 2, 4], ids=["first", "taken", "too far ahead"])
def test_an_event_is_refused_unless_it_is_the_next(runs: Runs, seq: int):
    begun(runs)
    before = move(runs, "bf-1", "approve", actor="bob")
    event = a_first_event(a_plan()).model_copy(update={"seq": seq, "verb": "cancel"})
    with pytest.raises(RunMoved):
        runs.append(event)
    assert runs.status("bf-1") == before
    assert len(runs.events("bf-1")) == 2


@pytest.mark.req("V3")
def test_the_loser_is_told_who_won_and_with_what(runs: Runs):
    status = begun(runs)
    common = {"mode": "backfill", "at": NOON, "detail": {}}
    runs.append(next_event(status, "approve", actor="bob", **common))
    with pytest.raises(RunMoved, match="bob was faster: bf-1 is approved since 'approve'"):
        runs.append(next_event(status, "cancel", actor="eve", **common))


def test_an_unknown_run_cannot_be_moved(runs: Runs):
    with pytest.raises(NotFound, match="bf-1"):
        runs.append(a_first_event(a_plan()))


def test_a_note_keeps_the_driver_and_a_move_without_one_clears_it(runs: Runs):
    status = begun(runs, driver="host:1")
    noted = runs.append(an_event("bf-1", status.seq + 1, RunState.STAGING, verb="ask to pause"))
    assert (noted.driver, noted.epoch, noted.lease_until) == ("host:1", 3, LATER)
    ended = move(runs, "bf-1", "pause")
    assert (ended.driver, ended.epoch, ended.lease_until) == (None, 3, None)


@pytest.mark.req("V3")
def test_closed_runs_are_listed_only_with_the_others_and_keep_their_status(runs: Runs):
    for run_id in ("bf-1", "bf-2"):
        begun(runs, run_id)
    closed = move(runs, "bf-1", "cancel")
    assert closed.state is RunState.CANCELLED
    assert runs.status("bf-1") == closed
    assert runs.list() == (runs.status("bf-2"),)
    assert runs.list(open_only=False) == (closed, runs.status("bf-2"))


def test_a_closed_run_can_open_again(runs: Runs):
    begun(runs)
    staged = ("approve", "begin staging", "finish staging", "pass validation", "accept")
    for verb in (*staged, "begin publishing", "finish publishing", "roll back"):
        move(runs, "bf-1", verb)
    assert runs.list() == ()
    again = move(runs, "bf-1", "begin publishing")
    assert runs.list() == (again,)
    assert [one.seq for one in runs.events("bf-1")] == list(range(1, 11))


# --- the chunk ledger -------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_the_newest_row_of_each_chunk_counts_in_chunk_order(runs: Runs):
    for chunk in (a_chunk("c10"), a_chunk("c9"), a_chunk("c9", rows=6), a_chunk("c1", run_id="x")):
        runs.record_chunk(chunk)
    assert runs.chunks("bf-1") == (a_chunk("c9", rows=6), a_chunk("c10"))


# --- rejected rows ----------------------------------------------------------------------------


def a_rejected_row(key: str, second: int = 0, chunk_id: str = "c1") -> dict[str, object]:
    row: dict[str, object] = {
        "run_id": "bf-1", "chunk_id": chunk_id, "source": "raw", "record_key": key,
        "reason": "late", "record": '{"v":1}', "rejected_at": NOON + timedelta(seconds=second),
    }  # fmt: skip
    return row | {"seal": rejects.row_seal(row)}


@pytest.mark.req("T13", "X5")
def test_rejected_rows_are_stored_by_run_chunk_and_attempt(control):
    begun(control.runs)
    first, again = [a_rejected_row("1"), a_rejected_row("2")], [a_rejected_row("1", second=1)]
    assert control.audit.rejected_groups() == ()
    for rows in (first, again):
        control.runs.record_rejects("bf-1", 0, rows)
    assert control.audit.rejected_groups() == tuple(
        RejectedGroup(
            run_id="bf-1", chunk_id="c1", rejected_at=rows[0]["rejected_at"], rows=len(rows),
            seal=rejects.rows_seal(row["seal"] for row in rows),
        )
        for rows in (first, again)
    )  # fmt: skip


@pytest.mark.req("T13", "X9")
def test_a_driver_that_was_overtaken_stores_no_rejected_rows(control):
    begun(control.runs, driver="host:1")
    control.runs.record_rejects("bf-1", 3, [a_rejected_row("1")])
    control.runs.fence("bf-1", 9)
    with pytest.raises(RunMoved):
        control.runs.record_rejects("bf-1", 3, [a_rejected_row("2")])
    (group,) = control.audit.rejected_groups()
    assert group.rows == 1
    control.runs.record_rejects("bf-1", 9, [a_rejected_row("2")])


@pytest.mark.req("T13", "X5")
def test_the_newest_ledger_row_of_a_chunk_says_how_many_rows_it_rejected(control):
    begun(control.runs)
    for rows, seal in ((2, "a" * 64), (3, "b" * 64)):
        counted = {"rejected_rows": rows, "reject_reasons": ("late",), "rejects_seal": seal}
        control.runs.record_chunk(a_chunk("c1").model_copy(update=counted))
    control.runs.record_chunk(a_chunk("c2"))
    assert control.audit.rejected_counts() == (
        RejectedCount(run_id="bf-1", chunk_id="c1", rows=3, seal="b" * 64),
    )
    assert control.runs.chunks("bf-1")[0].rejects_seal == "b" * 64


# --- the pointer ------------------------------------------------------------------------------


@pytest.mark.req("U12", "C1")
@pytest.mark.parametrize(
    ("actions", "accepted", "pending", "last_version"),
    [
        (["baseline"], 0, None, 0),
        (["reserve"], None, 0, 0),
        (["baseline", "reserve"], 0, 1, 1),
        (["baseline", "reserve", "publish"], 2, None, 2),
        (["baseline", "reserve", "release"], 0, None, 2),
        (["baseline", "publish", "rollback"], 2, None, 2),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_each_action_moves_the_pointer_as_the_port_says(
    versions: Versions, actions, accepted, pending, last_version
):
    rows = [a_row(version, action) for version, action in enumerate(actions)]
    after = put(versions, *rows)
    by_version = {row.version: row for row in rows}
    expected = Pointer(
        accepted=None if accepted is None else by_version[accepted],
        pending=None if pending is None else by_version[pending],
        last_version=last_version,
    )
    assert bare(after) == expected
    assert bare(versions.pointer(PRODUCT)) == expected
    assert bare(versions.history(PRODUCT)) == tuple(reversed(rows))


@pytest.mark.req("U12")
def test_one_move_may_write_several_rows(versions: Versions):
    rows = (a_row(0, "baseline"), a_row(1, "reserve"))
    assert bare(versions.move(PRODUCT, lambda _: rows)) == Pointer(
        accepted=rows[0], pending=rows[1], last_version=1
    )
    assert bare(versions.history(PRODUCT)) == (rows[1], rows[0])


@pytest.mark.req("O4", "V4")
def test_each_row_is_sealed_over_the_one_before_it_and_the_pointer_knows_the_last(
    versions: Versions,
):
    actions = ("baseline", "reserve", "publish", "reserve", "release")
    put(versions, *(a_row(version, action) for version, action in enumerate(actions)))
    rows, pointer = tuple(reversed(versions.history(PRODUCT))), versions.pointer(PRODUCT)
    assert pointer_rules.pointer_fault(PRODUCT, rows, pointer) is None
    assert (len({row.seal for row in rows}), pointer.head) == (5, rows[-1].seal)
    for at, row in enumerate(rows):
        edited = (*rows[:at], row.model_copy(update={"reason": "other"}), *rows[at + 1 :])
        assert pointer_rules.pointer_fault(PRODUCT, edited, pointer) is not None
        gone = (*rows[:at], *rows[at + 1 :])
        assert pointer_rules.pointer_fault(PRODUCT, gone, pointer) is not None


def _edit_pointer(versions: Versions, folder: Path, pointer: Pointer) -> None:
    """Change the pointer as anybody may who can write the table's properties."""
    if isinstance(versions, FakeVersions):
        versions.states[PRODUCT] = pointer
        return
    table = catalog_of(folder).load_table("lakehouse_backfill.accepted_output_version")
    with table.transaction() as change:
        change.set_properties({f"pointer.{PRODUCT}": canonical_json(pointer)})


@pytest.mark.req("U12", "V4")
def test_an_edited_pointer_takes_no_row_until_it_is_rebuilt(versions: Versions, tmp_path: Path):
    rows = [a_row(version, action) for version, action in enumerate(("baseline", "publish"))]
    whole = put(versions, *rows)
    more = a_row(2, "reserve")
    for edited in (
        whole.model_copy(update={"accepted": rows[0]}),
        whole.model_copy(update={"last_version": 0}),
        Pointer(),
    ):
        _edit_pointer(versions, tmp_path, edited)
        with pytest.raises(Tampered, match=PRODUCT) as refused:
            put(versions, more)
        assert "recover --all" in refused.value.fix
        assert bare(versions.history(PRODUCT)) == tuple(reversed(rows))
        with pytest.raises(Tampered, match="the row of a publication that its run records is gone"):
            versions.rebuild(PRODUCT, {"another"})
        assert versions.rebuild(PRODUCT, {rows[1].token}) == whole == versions.pointer(PRODUCT)
    assert bare(put(versions, more)).pending == more


def test_a_decision_sees_the_pointer_and_may_leave_it_alone(versions: Versions):
    row = a_row(1, "publish")
    before = put(versions, row)
    seen: list[Pointer] = []

    def leave(pointer: Pointer) -> tuple[Publication, ...]:
        seen.append(pointer)
        return ()

    assert versions.move(PRODUCT, leave) == before
    assert seen == [before]
    assert bare(versions.history(PRODUCT)) == (row,)


def test_what_a_decision_raises_comes_out_and_nothing_is_written(versions: Versions):
    def refuse(pointer: Pointer) -> tuple[Publication, ...]:
        raise NotFound("no")

    with pytest.raises(NotFound, match="no"):
        versions.move(PRODUCT, refuse)
    assert versions.history(PRODUCT) == ()


def test_a_move_writes_rows_of_its_own_product_only(versions: Versions):
    with pytest.raises(ValueError, match=r"cannot write a row of gold\.other"):
        versions.move(PRODUCT, lambda _: (a_row(1, "publish", "gold.other"),))


def test_products_do_not_touch_each_other(versions: Versions):
    mine, other = a_row(1, "publish"), a_row(3, "publish", "gold.other", scope=None, run_id=None)
    put(versions, mine, other)
    assert bare(versions.pointer(PRODUCT)) == Pointer(accepted=mine, last_version=1)
    assert bare(versions.pointer("gold.other")) == Pointer(accepted=other, last_version=3)
    assert bare(versions.history("gold.other")) == (other,)


def test_rows_of_a_table_are_those_of_all_its_products_newest_first(versions: Versions):
    mine = a_row(1, "publish")
    other = a_row(3, "publish", "gold.other", scope=None, run_id=None, table=mine.table)
    elsewhere = a_row(4, "publish", "gold.third", scope=None, run_id=None)
    put(versions, mine, other, elsewhere)
    assert bare(versions.of_table(mine.table)) == (other, mine)
    assert versions.of_table("gold.none") == ()


@pytest.mark.req("U2")
def test_pointers_of_several_products_move_in_one_commit(versions: Versions):
    rows = (a_row(1, "publish"), a_row(4, "publish", "gold.other", run_id=None))
    seen: list[dict[str, Pointer]] = []

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        seen.append(pointers)
        return rows

    products = (PRODUCT, "gold.other", "gold.untouched")
    moved = versions.move_all(products, decide)
    expected = {
        PRODUCT: Pointer(accepted=rows[0], last_version=1),
        "gold.other": Pointer(accepted=rows[1], last_version=4),
        "gold.untouched": Pointer(),
    }
    assert seen == [dict.fromkeys(products, Pointer())]
    assert (bare(moved), bare(versions.pointers(products))) == (expected, expected)


@pytest.mark.req("U2")
def test_pointers_of_several_products_move_together_or_not_at_all(versions: Versions):
    rows = (a_row(1, "publish"), a_row(1, "publish", "gold.unnamed", run_id=None))
    with pytest.raises(ValueError, match=r"gold\.unnamed"):
        versions.move_all((PRODUCT, "gold.other"), lambda _: rows)
    assert versions.history(PRODUCT) == ()
    assert versions.pointers((PRODUCT,)) == {PRODUCT: Pointer()}


# --- evidence ---------------------------------------------------------------------------------


@pytest.mark.req("C1")
def test_the_newest_document_of_a_kind_is_found_under_its_digest(evidence: Evidence):
    first, second = {"passed": False, "checks": [1, None]}, {"passed": True, "text": "ü'\"\n"}
    evidence.record("bf-1", "validation", first, 0)
    evidence.record("bf-1", "acceptance", {"by": "ann"}, 0)
    evidence.record("bf-2", "validation", {"passed": None}, 0)
    assert evidence.record("bf-1", "validation", second, 0) == digest(second)
    assert evidence.newest("bf-1", "validation") == (digest(second), second)


def test_the_newest_documents_of_several_runs_are_found_at_once(evidence: Evidence):
    for run_id, kind, number in (
        ("bf-1", "messages", 1), ("bf-2", "messages", 2), ("bf-1", "messages", 3),
        ("bf-1", "validation", 4), ("bf-3", "messages", 5),
    ):  # fmt: skip
        evidence.record(run_id, kind, {"n": number}, 0)
    found = evidence.newest_of({"bf-1", "bf-2", "bf-4"}, "messages")
    assert found == {"bf-1": {"n": 3}, "bf-2": {"n": 2}}
    assert evidence.newest_of((), "messages") == {}


def test_a_document_that_came_back_is_the_newest_again(evidence: Evidence):
    for document in ({"n": 1}, {"n": 2}, {"n": 1}):
        evidence.record("bf-1", "validation", document, 0)
    assert evidence.newest("bf-1", "validation") == (digest({"n": 1}), {"n": 1})


def test_the_same_document_again_is_stored_once(control):
    for _ in range(3):
        control.evidence.record("bf-1", "validation", {"n": 1}, 0)
    assert stored_documents(control.evidence) == 1


def stored_documents(evidence: FakeEvidence | IcebergEvidence) -> int:
    if isinstance(evidence, FakeEvidence):
        return len(evidence.rows)
    return len(evidence._log.head().rows())


def test_a_document_is_found_by_its_digest_within_its_run(evidence: Evidence):
    mark = evidence.record("bf-1", "validation", {"n": 1}, 0)
    evidence.record("bf-1", "validation", {"n": 2}, 0)
    assert evidence.document("bf-1", mark) == {"n": 1}
    assert evidence.document("bf-2", mark) is None
    assert evidence.document("bf-1", "d" * 64) is None


def edit_documents(evidence: FakeEvidence | IcebergEvidence, old: str, new: str) -> None:
    """Change the stored text by other means; what its digest column says stays."""
    if isinstance(evidence, FakeEvidence):
        evidence.rows = [(*row[:3], row[3].replace(old, new)) for row in evidence.rows]
        return
    table = evidence._log.head().table
    rows = table.scan().to_arrow().to_pylist()
    edited = [{**row, "document": row["document"].replace(old, new)} for row in rows]
    table.overwrite(pa.Table.from_pylist(edited, schema=table.schema().as_arrow()))


@pytest.mark.req("V4")
@pytest.mark.parametrize("new", ["2", "no JSON"])
def test_a_document_that_was_edited_is_refused_until_it_is_recorded_again(control, new: str):
    evidence = control.evidence
    mark = evidence.record("bf-1", "validation", {"n": 1}, 0)
    edit_documents(evidence, "1", new)
    with pytest.raises(Tampered, match="the validation of bf-1 was edited") as caught:
        evidence.document("bf-1", mark)
    assert str(caught.value.fix).startswith("lakehouse-backfill validate bf-1")
    assert evidence.newest("bf-1", "validation") is None
    assert evidence.document("bf-1", "d" * 64) is None
    assert evidence.record("bf-1", "validation", {"n": 1}, 0) == mark
    assert evidence.document("bf-1", mark) == {"n": 1}
    assert evidence.newest("bf-1", "validation") == (mark, {"n": 1})
    evidence.record("bf-1", "validation", {"n": 1}, 0)
    assert stored_documents(evidence) == 2


@pytest.mark.req("V4")
def test_the_newest_document_is_the_newest_that_was_not_edited(evidence: Evidence):
    for number in (1, 2):
        evidence.record("bf-1", "chunk-checks", {"n": number}, 0)
    edit_documents(evidence, "2", "3")
    assert evidence.newest("bf-1", "chunk-checks") == (digest({"n": 1}), {"n": 1})
    evidence.record("bf-1", "chunk-checks", {"n": 4}, 0)
    assert evidence.all_of("bf-1", "chunk-checks") == ({"n": 1}, {"n": 4})
    with pytest.raises(Tampered) as caught:
        evidence.document("bf-1", digest({"n": 2}))
    assert str(caught.value.fix).startswith("lakehouse-backfill run bf-1")


# --- leases and fences --------------------------------------------------------------------------


@pytest.mark.req("X9")
def test_a_lease_makes_a_driver_and_its_epoch_and_lasts_longer_when_renewed(runs: Runs):
    before = begun(runs, driver="host:1")
    assert (before.driver, before.epoch, before.lease_until) == ("host:1", 3, LATER)
    runs.renew("bf-1", 3, LATER + timedelta(minutes=1))
    after = runs.status("bf-1")
    assert after == before.model_copy(update={"lease_until": LATER + timedelta(minutes=1)})
    assert runs.list() == (after,)
    assert len(runs.events("bf-1")) == 3
    assert move(runs, "bf-1", "finish staging").seq == 4


@pytest.mark.req("X9")
def test_a_lease_that_is_over_or_somebody_elses_is_not_renewed(runs: Runs):
    begun(runs)
    move(runs, "bf-1", "approve")
    with pytest.raises(RunMoved):
        runs.renew("bf-1", 0, LATER)
    move(runs, "bf-1", "begin staging", driver="host:1")
    move(runs, "bf-1", "begin staging", driver="host:2")
    taken = runs.status("bf-1")
    for epoch in (0, 3, 5):
        with pytest.raises(RunMoved, match="taken over"):
            runs.renew("bf-1", epoch, LATER + timedelta(minutes=1))
    assert runs.status("bf-1") == taken
    move(runs, "bf-1", "pause")
    with pytest.raises(RunMoved):
        runs.renew("bf-1", 4, LATER)
    with pytest.raises(NotFound):
        runs.renew("bf-9", 4, LATER)


@pytest.mark.req("X9")
def test_a_fence_refuses_rows_of_earlier_epochs_in_all_three_tables(control):
    control.runs.fence("bf-1", 5)
    rows_before = len(control.versions.history(PRODUCT))
    for epoch in (0, 4):
        with pytest.raises(RunMoved, match=r"lease \d, now 5"):
            control.runs.record_chunk(a_chunk("c1").model_copy(update={"epoch": epoch}))
        with pytest.raises(RunMoved, match="bf-1 was taken over"):
            control.evidence.record("bf-1", "validation", {"n": 1}, epoch)
        with pytest.raises(RunMoved):
            put(control.versions, a_row(1, "reserve", epoch=epoch))
    assert control.runs.chunks("bf-1") == ()
    assert control.evidence.newest("bf-1", "validation") is None
    assert control.versions.pointer(PRODUCT) == Pointer()
    assert len(control.versions.history(PRODUCT)) == rows_before


@pytest.mark.req("X9")
def test_a_fence_lets_its_own_epoch_later_ones_and_other_runs_through(control):
    control.runs.fence("bf-1", 5)
    for epoch in (5, 6):
        control.runs.record_chunk(a_chunk(f"c{epoch}").model_copy(update={"epoch": epoch}))
        control.evidence.record("bf-1", "validation", {"n": epoch}, epoch)
        put(control.versions, a_row(epoch, "publish", epoch=epoch))
    other = a_chunk("c1", run_id="bf-10")
    control.runs.record_chunk(other)
    control.evidence.record("bf-10", "validation", {"n": 1}, 0)
    rollback = a_row(7, "rollback", run_id=None)
    put(control.versions, rollback)
    assert [(one.chunk_id, one.epoch) for one in control.runs.chunks("bf-1")] == [
        ("c5", 5),
        ("c6", 6),
    ]
    assert control.runs.chunks("bf-10") == (other,)
    assert bare(control.versions.pointer(PRODUCT).accepted) == rollback


@pytest.mark.req("X9")
def test_a_fence_is_only_ever_raised(control):
    for epoch in (5, 3, 5):
        control.runs.fence("bf-1", epoch)
    with pytest.raises(RunMoved, match="now 5"):
        control.runs.record_chunk(a_chunk("c1").model_copy(update={"epoch": 4}))
    control.runs.fence("bf-1", 6)
    with pytest.raises(RunMoved, match="now 6"):
        control.runs.record_chunk(a_chunk("c1").model_copy(update={"epoch": 5}))


def test_the_reservations_of_all_products_are_listed(versions: Versions):
    mine, other = a_row(1, "reserve"), a_row(4, "reserve", "gold.other")
    done = a_row(2, "reserve", "gold.done"), a_row(2, "publish", "gold.done")
    put(versions, mine, *done, other)
    assert {row.token for row in versions.pending()} == {mine.token, other.token}


# --- the log of events --------------------------------------------------------------------------


@pytest.mark.req("V4")
def test_the_log_is_a_sealed_chain_over_all_runs_open_and_closed(control):
    for run_id in ("bf-1", "bf-2", "bf-3"):
        begun(control.runs, run_id)
    move(control.runs, "bf-1", "approve", hash="abc", who=["ann", "bob"], share=0.1)
    move(control.runs, "bf-1", "begin staging", driver="host:1")
    closed = move(control.runs, "bf-2", "cancel")
    chains = control.audit.chains()
    assert {run: [one.seq for one in chain] for run, chain in chains.items()} == {
        "bf-1": [1, 2, 3], "bf-2": [1, 2], "bf-3": [1],
    }  # fmt: skip
    found = audit_rules.verify_logs(chains, control.audit.seal(), control.runs.list())
    assert (found.first_bad, found.events, found.runs, found.unchained) == (None, 6, 3, 0)
    assert found.heads["bf-2"] == closed.head == control.runs.status("bf-2").head
    assert chains["bf-1"] == control.runs.events("bf-1")
    assert chains["bf-1"][2].driver == "host:1"


def test_no_run_is_a_draft_once_its_first_event_is_there(control):
    begun(control.runs)
    assert control.audit.drafts() == ()


@pytest.mark.req("V4")
def test_the_rows_of_every_product_lead_to_its_pointer(control):
    acts = (
        (a_row(0, "baseline", run_id=None), a_row(1, "reserve")), (a_row(1, "publish"),),
        (a_row(2, "reserve"),), (a_row(2, "release"),), (a_row(3, "reserve"),),
    )  # fmt: skip
    for rows in acts:
        control.versions.move(PRODUCT, lambda _, rows=rows: rows)
    put(control.versions, a_row(4, "publish", "gold.other"))
    products = control.audit.products()
    assert products == {
        name: (tuple(reversed(control.versions.history(name))), control.versions.pointer(name))
        for name in ("gold.other", PRODUCT)
    }
    found = audit_rules.verify_logs({}, None, (), products)
    assert (found.first_bad, found.products) == (None, 2)
