"""The verbs from plan to rollback, over an in-memory lake."""

from __future__ import annotations

import dataclasses

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.approval.decisions import waive
from lakehouse_backfill.core.evidence import status
from lakehouse_backfill.core.planning.job_code import prove_determinism, prove_warm_up
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.core.versions.readers import accepted_versions, resolve_accepted
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake


@pytest.mark.req("M3")
def test_the_same_intent_on_the_same_snapshots_is_the_same_run() -> None:
    found = context(lake())
    assert steps.planned_run(found) == steps.planned_run(found)
    assert len(found.runs.list()) == 1


@pytest.mark.req("M3")
def test_another_snapshot_of_the_source_gives_another_hash() -> None:
    where, found = steps.world()
    first = make_plan(found, declared(), "bob", None)
    where.write("bronze.raw", "2020-01-01", "raw-2")
    assert make_plan(found, declared(), "bob", None).manifest_hash != first.manifest_hash


@pytest.mark.req("S1")
def test_a_plan_pins_its_sources_and_the_base_of_its_target() -> None:
    where = lake()
    run_id = steps.planned_run(context(where))
    assert where.tables["bronze.raw"].refs == {f"lhb-pin-{run_id}-raw": 1}
    assert where.tables[PRODUCT].refs == {f"lhb-pin-{run_id}": 1}


@pytest.mark.req("S1")
def test_a_leased_source_is_not_tagged() -> None:
    where = lake()
    steps.planned_run(context(where), declared(sources={"raw": {"pin": "lease_only"}}))
    assert where.tables["bronze.raw"].refs == {}


@pytest.mark.req("P1")
def test_a_dry_run_of_plan_changes_nothing() -> None:
    where, found = steps.world()
    make_plan(found, declared(), "bob", None)
    assert (found.runs.list(), where.calls) == ((), [])


@pytest.mark.req("P1")
@pytest.mark.parametrize("safety", [{"max_rows": 19}, {"max_bytes": 99}], ids=["rows", "bytes"])
def test_a_plan_over_a_limit_is_refused_with_number_and_limit(safety: dict[str, int]) -> None:
    with pytest.raises(errors.LimitExceeded, match=rf"allows {next(iter(safety.values()))}"):
        make_plan(context(lake()), declared(safety=safety), "bob", None)


@pytest.mark.req("P1")
def test_without_history_the_duration_is_unknown_not_zero() -> None:
    estimate = make_plan(context(lake()), declared(), "bob", None).estimate
    assert (estimate.duration_s, estimate.cost_usd) == (None, None)
    assert "duration and core-hours: not estimated" in estimate.basis
    assert (estimate.input_files, estimate.output_rows, estimate.output_files) == (1, 20, 2)


@pytest.mark.req("P1")
def test_a_plan_answers_the_checklist_and_names_what_overlaps() -> None:
    found = context(lake())
    first = steps.planned_run(found)
    plan = make_plan(found, declared("2020-01-03", "2020-01-05"), "bob", None)
    assert [conflict.run_id for conflict in plan.conflicts] == [first]
    assert plan.conflicts[0].partitions == ("2020-01-03",)
    assert len(plan.checklist) == 16
    assert all(question.answer for question in plan.checklist)


@pytest.mark.req("P2", "T5")
def test_an_input_range_without_room_for_warm_up_is_refused_with_the_range_to_write() -> None:
    sources = {"raw": {"range": {"column": "day", "from": "2020-01-02", "to": "2020-01-04"}}}
    with pytest.raises(errors.ConfigError) as refused:
        make_plan(context(lake()), declared(sources=sources), "bob", None)
    assert "from: 2019-12-31, to: 2020-01-05" in refused.value.fix


def test_two_open_runs_over_the_same_partitions_are_not_both_approved() -> None:
    found = context(lake())
    steps.planned_run(found)
    second = steps.planned_run(found, declared("2020-01-03", "2020-01-05"))
    with pytest.raises(errors.Conflict, match="overlaps open run"):
        decisions.approve(found, second, "ana", "")


def test_only_those_whom_the_contract_names_may_decide() -> None:
    wanted = declared(contract=contract(roles={"approve": ["lead"]}))
    found = context(lake())
    run_id = steps.planned_run(found, wanted)
    with pytest.raises(errors.NotAllowed, match="lead"):
        decisions.approve(found, run_id, "ana", "")


@pytest.mark.parametrize("who", ["bob", " bob", "pat"])
def test_with_four_eyes_neither_requester_nor_planner_decides(who: str) -> None:
    found = context(lake())
    run_id = steps.planned_run(
        found, declared(contract=contract(four_eyes=True), run={"requested_by": "pat"})
    )
    with pytest.raises(errors.NotAllowed, match="four eyes"):
        decisions.approve(found, run_id, who, "")


def test_another_profile_is_no_way_around_four_eyes() -> None:
    catalog = {"name": "lake"}
    planned, decided = (
        Profile.model_validate({"catalog": catalog, "environment": name})
        for name in ("dev", "prod")
    )
    found = context(lake(), profile=planned)
    run_id = steps.planned_run(found)
    other = dataclasses.replace(found, profile=decided)
    with pytest.raises(errors.NotAllowed, match="four eyes"):
        decisions.approve(other, run_id, "bob", "")
    # Ana may decide, but not on a plan that nobody signed.
    with pytest.raises(errors.ApprovalMissing, match=r"plan .*not signed"):
        decisions.approve(other, run_id, "ana", "")


def test_a_bad_input_halts_the_run_before_anything_is_staged() -> None:
    where, found = steps.world(bad_suites={"expectations/raw.json"})
    wanted = declared(contract=contract(suites=[{"file": "expectations/raw.json", "on": "raw"}]))
    run_id = steps.approved_run(found, wanted)
    with pytest.raises(errors.ChecksFailed, match=r"expectations/raw\.json"):
        stage(found, run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.HALTED
    assert "open shadow" not in where.calls


@pytest.mark.req("Q10")
def test_an_open_edge_rejects_the_run_and_names_the_closing_range() -> None:
    _, found = steps.world(open_edges={"2020-01-01", "2020-01-04"})
    run_id = steps.staged_run(found)
    status, result, _ = validate(found, run_id, "bob")
    assert status.state is RunState.REJECTED
    assert (result.edge.closing_from, result.edge.closing_to) == ("2020-01-01", "2020-01-05")


@pytest.mark.req("Q1", "Q9")
def test_a_partition_that_would_become_empty_is_not_accepted_silently() -> None:
    _, found = steps.world(empty={"2020-01-03"})
    run_id = steps.approved_run(found)
    with pytest.raises(errors.ChecksFailed, match="partition keep rows\\? 1 become empty"):
        stage(found, run_id, "bob")
    waive(found, run_id, "no partition becomes empty", "ana", "the shop was closed")
    stage(found, run_id, "bob")
    _, result, _ = validate(found, run_id, "bob")
    failed = [check.name for check in result.checks if not check.passed]
    assert failed == ["no partition becomes empty"]
    with pytest.raises(errors.IllegalMove):
        decisions.accept(found, run_id, "ana", "")


@pytest.mark.req("U1")
def test_publication_replaces_the_partitions_and_nothing_else() -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    live = where.write(PRODUCT, "2020-01-05", "live")
    done = publish(found, run_id, "bob")
    assert steps.content_of(where) == {
        "2020-01-01": {"old-1"}, "2020-01-02": {f"{run_id}/2020-01-02"},
        "2020-01-03": {f"{run_id}/2020-01-03"}, "2020-01-04": {"old-4"}, "2020-01-05": {"live"},
    }  # fmt: skip
    assert (done.publication.version, done.publication.before_snapshot_id) == (1, live)
    assert done.publication.approved_by == ("ana",)
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.req("U1")
def test_publishing_twice_changes_nothing() -> None:
    where, found = steps.world()
    run_id = steps.accepted_run(found)
    first = publish(found, run_id, "bob")
    again = publish(found, run_id, "bob")
    assert (again.was_published, again.publication.version) == (True, first.publication.version)
    assert where.calls.count("adopt") == 1


@pytest.mark.req("U12")
def test_version_0_is_what_the_first_swap_found_and_its_tag_keeps() -> None:
    where, found = steps.world()
    refused = steps.accepted_run(found)
    where.write(PRODUCT, "2020-01-02", "live")
    with pytest.raises(errors.TargetChanged):
        publish(found, refused, "bob")
    # No tag keeps what was there at a publication that did not come about.
    assert found.versions.pointer(PRODUCT).accepted is None
    where.write(PRODUCT, "2020-01-06", "later")
    head = where.tables[PRODUCT].head
    later = steps.accepted_run(found, declared("2020-01-04", "2020-01-05"))
    done = publish(found, later, "bob")
    zero = found.versions.history(PRODUCT)[1]
    assert (zero.action, zero.version, zero.snapshot_id) == ("baseline", 0, head)
    assert done.publication.before_snapshot_id == head


@pytest.mark.req("E5")
def test_a_rejection_takes_back_what_was_decided_before() -> None:
    found = context(lake())
    run_id = steps.accepted_run(found)
    decisions.reject(found, run_id, "ana", "look again")
    with pytest.raises(errors.ApprovalMissing):
        stage(found, run_id, "bob")


@pytest.mark.req("U12")
def test_publish_roll_back_publish_again_is_legal_and_counts_on() -> None:
    _, found = steps.world()
    run_id = steps.published_run(found)
    steps.roll_back(found)
    again = publish(found, run_id, "bob")
    assert (again.publication.version, again.publication.supersedes) == (2, 0)
    assert steps.state_of(found, run_id) is RunState.PUBLISHED
    actions = [row.action for row in accepted_versions(found, PRODUCT)]
    assert actions == ["publish", "rollback", "publish", "baseline"]


@pytest.mark.req("U12")
def test_a_rollback_over_a_later_live_write_is_refused_and_released() -> None:
    where, found = steps.world()
    steps.published_run(found)
    where.write(PRODUCT, "2020-01-02", "live")
    with pytest.raises(errors.TargetChanged):
        steps.roll_back(found)
    assert steps.pending_of(found) is None
    assert steps.content_of(where)["2020-01-02"] == {"live"}


@pytest.mark.req("U12")
def test_a_rollback_that_looked_at_an_older_pointer_is_refused() -> None:
    _, found = steps.world()
    steps.published_run(found)
    way = plan_rollback(found, PRODUCT, None, ())
    steps.published_run(found, declared("2020-01-04", "2020-01-05"))
    with pytest.raises(errors.PointerMoved, match="version 2"):
        rollback(found, contract(), way, "x", "ana")


def test_the_first_publication_of_an_absent_target_and_its_rollback() -> None:
    where = lake()
    where.tables.pop(PRODUCT)
    found = context(where)
    steps.published_run(found, declared(contract=contract(lineage_columns=False)))
    assert set(steps.content_of(where)) == {"2020-01-02", "2020-01-03"}
    steps.roll_back(found)
    assert steps.content_of(where) == {}


@pytest.mark.req("U13")
def test_a_pinned_product_is_published_and_rolled_back_by_its_pointer_alone() -> None:
    where = lake()
    pinned = contract(publication="pinned", view="silver.daily_accepted")
    wanted = declared(contract=pinned, target={"publish_mode": "pointer_swap"})
    found = context(where)
    before = dict(steps.content_of(where))
    run_id = steps.published_run(found, wanted)
    accepted = resolve_accepted(found, pinned, strict=True)
    assert accepted.table == found.runs.plan(run_id).shadow_table
    assert found.views.views == {"silver.daily_accepted": (accepted.table, accepted.snapshot_id)}
    steps.roll_back(found, of=pinned)
    assert resolve_accepted(found, pinned, strict=True).table == PRODUCT
    assert found.views.views == {"silver.daily_accepted": (PRODUCT, 1)}
    assert (steps.content_of(where), where.calls.count("adopt")) == (before, 0)


def test_a_run_without_manual_publish_drives_itself_to_the_next_decision() -> None:
    _, found = steps.world()
    run_id = steps.planned_run(found, declared(safety={"manual_publish": False}))
    with pytest.raises(errors.ApprovalMissing, match="is not approved, so nothing was computed"):
        run_until_decision(found, run_id, "bob")
    decisions.approve(found, run_id, "ana", "")
    assert run_until_decision(found, run_id, "bob")["state"] == "validated"
    decisions.accept(found, run_id, "ana", "")
    assert run_until_decision(found, run_id, "bob")["state"] == "published"


def test_a_closed_run_is_not_driven() -> None:
    found = context(lake())
    run_id = steps.planned_run(found)
    decisions.cancel(found, run_id, "ana", "")
    with pytest.raises(errors.IllegalMove, match="is cancelled"):
        run_until_decision(found, run_id, "bob")


@pytest.mark.req("U12", "U13")
def test_the_status_of_a_run_names_partitions_that_went_back_and_how_they_return() -> None:
    found = context(lake())
    run_id = steps.accepted_run(found)
    published = publish(found, run_id, "ana").publication
    seen = status.summarise_run_safety(found, found.runs.status(run_id), look=True)
    assert "except" not in seen.readers_see
    one = published.scope.partitions[0] if published.scope else ""
    steps.roll_back(found, None, (one,))
    seen = status.summarise_run_safety(found, found.runs.status(run_id), look=True)
    assert (
        seen.readers_see == f"the restated partitions of this run, except {one}, rolled back since"
    )
    assert f"rollback {PRODUCT} --to {published.version} --reason" in seen.next_command
    rollback(found, contract(), plan_rollback(found, PRODUCT, published.version, ()), "y", "ana")
    seen = status.summarise_run_safety(found, found.runs.status(run_id), look=True)
    assert "except" not in seen.readers_see


def test_a_shadow_only_run_can_never_be_published() -> None:
    found = context(lake())
    run_id = steps.accepted_run(found, declared(target={"publish_mode": "shadow_only"}))
    with pytest.raises(errors.Blocked, match="never be published"):
        publish(found, run_id, "bob")


@pytest.mark.req("O2")
def test_every_log_line_of_a_run_carries_its_labels() -> None:
    found = context(lake())
    run_id = steps.accepted_run(found)
    lines = found.journal.lines
    assert {fields["run_id"] for _, fields in lines} == {run_id}
    assert all(
        {"target", "transform_version", "processing_mode"} <= set(fields) for _, fields in lines
    )
    chunks = [fields for event, fields in lines if event == "stage chunk"]
    assert [fields["chunk_id"] for fields in chunks] == ["c0001-2020-01-02", "c0002-2020-01-03"]
    # The window of the source that a chunk reads, with a day of warm-up; the end is not included.
    assert [fields["source_range"] for fields in chunks] == [
        "2020-01-01T00:00:00+00:00..2020-01-03T00:00:00+00:00",
        "2020-01-02T00:00:00+00:00..2020-01-04T00:00:00+00:00",
    ]


@pytest.mark.req("O2", "D3")
@pytest.mark.parametrize(("at", "version"), [("spring", "rates=spring@1"), (None, "rates=1")])
def test_log_lines_and_snapshots_name_the_reference_data_as_it_was_asked_for(
    at: str | None, version: str
) -> None:
    where, found = steps.world()
    where.add("bronze.rates", all="r1")
    where.pin("bronze.rates", 1, "spring")
    reference = {"table": "bronze.rates", "semantics": "corrected_truth"} | (
        {"at": at} if at else {}
    )
    run_id = steps.published_run(found, declared(reference_data={"rates": reference}))
    lines = [fields for _, fields in found.journal.lines]
    assert {fields["reference_data_version"] for fields in lines} == {version}
    (summary,) = [one for one in where.tables[PRODUCT].summaries if "token" in one]
    assert summary["lakehouse-backfill.reference-data-version"] == version
    (pin,) = [pin for pin in found.runs.plan(run_id).resolved.sources if pin.name == "rates"]
    assert (pin.requested, pin.snapshot_id) == (f"bronze.rates{'@' + at if at else ''}", 1)


@pytest.mark.req("V1")
@pytest.mark.parametrize(
    ("kind", "fix"),
    [("bootstrap", "run.kind: restatement"), ("reconciliation", "publish_mode: shadow_only")],
)
def test_a_kind_that_contradicts_what_the_run_would_do_is_refused(kind: str, fix: str) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        make_plan(context(lake()), declared(run={"kind": kind}), "bob", None)
    assert fix in refused.value.fix


@pytest.mark.req("V1")
def test_a_bootstrap_of_an_absent_product_is_planned() -> None:
    where = lake()
    where.tables.pop(PRODUCT)
    run = {"kind": "bootstrap", "reason_code": "new_product"}
    plan = make_plan(context(where), declared(run=run), "bob", None)
    assert any("does not exist" in note for note in plan.notes)


@pytest.mark.req("P2")
def test_a_warm_up_that_is_proven_enough_is_said_with_its_checksums() -> None:
    found = context(lake())
    proof = prove_warm_up(found, make_plan(found, declared(), "bob", None))
    assert (proof["partition"], proof["equal"]) == ("2020-01-02", True)
    assert proof["declared"] == proof["doubled"]


@pytest.mark.req("P2")
def test_a_warm_up_that_is_too_short_is_refused_before_the_run_is_registered() -> None:
    _, found = steps.world(needs_more_warm_up=True)
    with pytest.raises(errors.ChecksFailed, match="twice the warm-up"):
        prove_warm_up(found, make_plan(found, declared(), "bob", None))
    assert found.runs.list() == ()


@pytest.mark.req("D1")
def test_a_transform_that_is_proven_deterministic_is_said_with_its_checksums() -> None:
    found = context(lake())
    proof = prove_determinism(found, make_plan(found, declared(), "bob", None))
    assert (proof["partition"], proof["equal"]) == ("2020-01-02", True)
    assert proof["first"] == proof["second"]


@pytest.mark.req("D1")
def test_a_transform_that_depends_on_the_order_of_rows_is_refused_with_its_columns() -> None:
    _, found = steps.world(order_matters=True)
    with pytest.raises(errors.ChecksFailed, match="columns amount differ"):
        prove_determinism(found, make_plan(found, declared(), "bob", None))
    assert found.runs.list() == ()


@pytest.mark.parametrize(("duplicates", "state"), [((3, 0), "validated"), ((3, 2), "rejected")])
def test_only_duplicate_keys_that_are_left_in_the_candidate_stop_a_run(duplicates, state) -> None:
    _, found = steps.world(duplicates=duplicates)
    run_id = steps.staged_run(found)
    assert validate(found, run_id, "bob")[0].state.value == state
