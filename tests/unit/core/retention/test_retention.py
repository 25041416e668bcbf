"""What is kept, for whom and why; what nobody needs is let go."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.retention.maintain import gather_facts
from lakehouse_backfill.core.retention.policy import (
    RetentionDecision,
    RetentionFacts,
    decide_retention,
    is_held_by_run,
    pin_lease_end,
)
from lakehouse_backfill.core.versions.retention import decide_version_retention
from lakehouse_backfill.domain.contract import KeepVersions
from lakehouse_backfill.domain.publication import Publication, PublicationAction
from lakehouse_backfill.domain.retention import PinLease, RunFacts
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.domain.stateful.declaration import StateSnapshot, StateStart
from tests.support.examples.plans import a_publication, an_event, with_fields
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared

pytestmark = pytest.mark.req("U12")

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
TABLE, SOURCE = "silver.t", "bronze.s"
OVER, RUNNING = NOW - timedelta(days=1), NOW + timedelta(days=5)


def a_run(number: int, state: str, ends: datetime | None, target: str = TABLE) -> RunFacts:
    return RunFacts(
        run_id=f"bf-{number}", product="p", state=state, target=target, shadow=f"shadow.s{number}",
        owner="ana", reason="wrong rate", ends=ends,
    )  # fmt: skip


def a_pin(number: int, table: str = TABLE, snapshot_id: int = 1, source: str = "") -> PinLease:
    return PinLease(
        table=table, tag=f"lhb-pin-bf-{number}{source}", snapshot_id=snapshot_id,
        run_id=f"bf-{number}", product="p", owner="ana", reason="wrong rate", until=OVER,
        at=OVER, by="ana",
    )  # fmt: skip


def facts(*runs: RunFacts, leases: tuple[PinLease, ...] = (), **more: Any) -> RetentionFacts:
    tags: dict[str, dict[str, int]] = {}
    for lease in leases:
        tags.setdefault(lease.table, {})[lease.tag] = lease.snapshot_id
    fields: dict[str, Any] = {
        "now": NOW, "runs": {run.run_id: run for run in runs},
        "shadows": tuple(run.shadow for run in runs), "leases": leases,
        "version_retention": {}, "tags": tags,
    }  # fmt: skip
    return RetentionFacts(**(fields | more))


def names(found: RetentionDecision) -> tuple[list[str], list[str]]:
    return sorted(i.name for i in found.retired), sorted(i.name for i in found.kept)


@pytest.mark.parametrize("state", [one for one in RunState if one is not RunState.DRAFT])
def test_a_run_keeps_everything_until_it_is_closed_and_its_lease_is_over(state: RunState) -> None:
    closed = state in (
        RunState.PUBLISHED,
        RunState.CANCELLED,
        RunState.SUPERSEDED,
        RunState.ROLLED_BACK,
    )
    status = RunStatus(run_id="bf-1", product="p", state=state, seq=3, at=NOW)
    for days, is_over in ((29, False), (31, True)):
        moved = NOW - timedelta(days=days)
        event = an_event("bf-1", 3, RunState.DRAFT, state, at=moved)
        ends = pin_lease_end(status, (event,))
        assert (ends is None) is not closed
        found = decide_retention(
            facts(a_run(1, state.value, ends), leases=(a_pin(1),), fences=("bf-1",))
        )
        everything = ["bf-1", "shadow.s1", f"{TABLE}@lhb-pin-bf-1"]
        assert names(found) == ((everything, []) if closed and is_over else ([], everything))


def test_a_lease_counts_from_acceptance_and_what_is_noted_later_does_not_prolong_it() -> None:
    days = {"accept": 50, "finish publishing": 40, "retire": 1}
    moves = {
        "accept": (RunState.VALIDATED, RunState.ACCEPTED),
        "finish publishing": (RunState.VALIDATED, RunState.PUBLISHED),
        "retire": (RunState.PUBLISHED, RunState.PUBLISHED),
    }
    events = tuple(
        an_event("bf-1", number, *states, verb=verb, at=NOW - timedelta(days=days[verb]))
        for number, (verb, states) in enumerate(moves.items(), 1)
    )
    status = RunStatus(run_id="bf-1", product="p", state=RunState.PUBLISHED, seq=3, at=NOW)
    assert pin_lease_end(status, events) == NOW - timedelta(days=20)
    assert pin_lease_end(status, events[1:]) == NOW - timedelta(days=10)


def test_a_pin_whose_run_was_never_stored_is_kept_for_its_own_lease() -> None:
    pin = a_pin(7)
    young = pin.model_copy(update={"until": RUNNING})
    assert names(decide_retention(facts(leases=(pin,)))) == ([f"{TABLE}@lhb-pin-bf-7"], [])
    found = decide_retention(facts(leases=(young,)))
    assert [(i.because, i.owner, i.until) for i in found.kept] == [
        ("bf-7 was never stored; its lease ends on 2026-06-06", "ana", RUNNING)
    ]


def act(version: int, action: PublicationAction, table: str, snapshot_id: int) -> Publication:
    return a_publication(
        version, action, product="p", token=f"{version:012d}-{action}", table=table,
        snapshot_id=snapshot_id, at=NOW - timedelta(days=200 - version),
    )  # fmt: skip


def pinned(last: int) -> Any:
    """A pinned product with versions 0 … `last`, of which two are kept."""
    rows = [act(0, "baseline", TABLE, 1)]
    rows += [act(n, "publish", f"shadow.s{n}", 10 + n) for n in range(1, last + 1)]
    return decide_version_retention(
        tuple(reversed(rows)), KeepVersions(count=2, days=0), None, NOW, is_pinned=True
    )


def test_a_kept_version_keeps_its_shadow_and_the_base_that_the_first_was_cloned_from() -> None:
    runs = (
        a_run(1, "published", OVER),
        a_run(2, "published", OVER, "shadow.s1"),
        a_run(3, "published", OVER, "shadow.s2"),
        a_run(4, "cancelled", OVER, "shadow.s2"),
    )
    leases = (
        a_pin(1), a_pin(1, SOURCE, 5, "-s"), a_pin(2, "shadow.s1", 11), a_pin(3, "shadow.s2", 12),
        a_pin(4, "shadow.s2", 12),
    )  # fmt: skip
    made = facts(*runs, leases=leases, version_retention={"p": pinned(3)})
    for number in (2, 3):
        tags = made.tags.setdefault(f"shadow.s{number}", {})  # type: ignore[attr-defined]
        tags[f"lhb-v{number}-{number:012d}"] = 10 + number
    found = decide_retention(made)
    retired, kept = names(found)
    assert retired == [
        f"{SOURCE}@lhb-pin-bf-1-s", "p version 0", "p version 1", "shadow.s1",
        "shadow.s1@lhb-pin-bf-2", "shadow.s2@lhb-pin-bf-3", "shadow.s2@lhb-pin-bf-4", "shadow.s4",
    ]  # fmt: skip
    because = {item.name: item.because for item in found.kept}
    assert because["shadow.s3"] == "it is version 3 of p, which is kept"
    assert because[f"{TABLE}@lhb-pin-bf-1"] == (
        "what was cloned by bf-1 is kept, and shares its files"
    )
    assert len(kept) == 2 + 2 + 2 + 1


def test_versions_beside_a_table_that_cannot_be_read_keep_their_shadows_and_tags() -> None:
    runs = [a_run(1, "published", OVER)]
    runs += [a_run(n, "published", OVER, f"shadow.s{n - 1}") for n in (2, 3, 4)]
    tags = {f"shadow.s{n}": {f"lhb-v{n}-{n:012d}": 10 + n} for n in (1, 2, 3, 4)}
    made = facts(*runs, version_retention={"p": pinned(4)}, tags=tags)
    assert names(decide_retention(made))[0] == [
        "p version 0", "p version 1", "p version 2", "shadow.s1",
        "shadow.s1@lhb-v1-000000000001", "shadow.s2", "shadow.s2@lhb-v2-000000000002",
    ]  # fmt: skip
    found = decide_retention(replace(made, unreadable_tables={TABLE: "it is broken"}))
    retired, kept = names(found)
    assert retired == []
    assert [f"p version {number}" for number in range(5)] == kept[:5]
    assert {"shadow.s1", "shadow.s2", "shadow.s3", "shadow.s4"} < {*kept}


def test_a_pin_that_alone_keeps_an_accepted_version_stays() -> None:
    run = a_run(1, "published", OVER)
    found = decide_retention(
        facts(run, leases=(a_pin(1),), version_retention={"p": pinned(1)}, shadows=())
    )
    assert {i.name: i.because for i in found.kept if i.kind == "pin"} == {
        f"{TABLE}@lhb-pin-bf-1": "it alone keeps a version of p that is kept"
    }


def test_an_erasure_ends_leases_early_but_not_those_of_open_runs() -> None:
    runs = (a_run(1, "published", RUNNING), a_run(2, "staged", None))
    leases = (a_pin(1), a_pin(2), a_pin(1, SOURCE, 5, "-s"))
    found = decide_retention(
        facts(
            *runs, leases=leases, erased_tables=frozenset({TABLE}), erasure="erasure, by ana: 4711"
        )
    )
    assert names(found) == (
        ["shadow.s1", f"{TABLE}@lhb-pin-bf-1"],
        [f"{SOURCE}@lhb-pin-bf-1-s", "shadow.s2", f"{TABLE}@lhb-pin-bf-2"],
    )
    assert {item.because for item in found.retired} == {"erasure, by ana: 4711"}


@pytest.mark.req("D5")
@pytest.mark.parametrize("ends", [None, RUNNING, OVER])
def test_a_scratch_table_goes_when_nobody_wrote_to_it_for_a_day(ends: datetime | None) -> None:
    run, scratch = a_run(1, "published" if ends else "staged", ends), "shadow.s1__again_0123abcd"
    gone = {}
    for hours in (23, 25, None):
        written = {} if hours is None else {scratch: NOW - timedelta(hours=hours)}
        made = facts(run, shadows=(run.shadow, scratch), scratch_written_at=written)
        found = decide_retention(made)
        gone[hours] = [item.name for item in found.retired if item.name == scratch]
        own = [item.name for item in (*found.retired, *found.kept) if is_held_by_run(made, item)]
        assert own == [run.shadow]
    assert gone == {23: [], 25: [scratch], None: []}


@pytest.mark.req("X6")
@pytest.mark.parametrize("ends", [None, NOW])
def test_an_intermediate_result_goes_when_nobody_used_it_for_a_week(ends: datetime | None) -> None:
    run, kept = (
        a_run(1, "published" if ends else "staged", ends),
        f"shadow.{'lhb_intermediate_'}{'0a' * 16}",
    )
    gone = {}
    for days in (6, 8, None):
        used = {} if days is None else {kept: NOW - timedelta(days=days)}
        found = decide_retention(facts(run, shadows=(run.shadow, kept), scratch_written_at=used))
        gone[days] = [item.name for item in found.retired if item.name == kept]
        if days == 6:
            assert [one.because for one in found.kept if one.name == kept] == [
                "an intermediate result, used within 7 days"
            ]
    assert gone == {6: [], 8: [kept], None: []}


STATEFUL = {
    "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "empty",
    "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
    "warm_up_days": 1,
}  # fmt: skip
STATE = f"shadow.lhb_state_{'0a' * 16}"


@pytest.mark.req("X4")
@pytest.mark.parametrize("days", [89, 91])
def test_a_state_goes_after_three_months_unless_an_open_run_reads_it(days: int) -> None:
    written = {STATE: NOW - timedelta(days=days)}
    closed = a_run(1, "published", RUNNING)
    reading = a_run(2, "staging", None).model_copy(update={"reads": (STATE,)})
    shadows = (closed.shadow, reading.shadow, STATE)
    alone = decide_retention(facts(closed, shadows=shadows[::2], scratch_written_at=written))
    assert names(alone)[0] == ([STATE] if days > 90 else [])
    found = decide_retention(facts(closed, reading, shadows=shadows, scratch_written_at=written))
    assert names(found)[0] == []


@pytest.mark.req("X4")
@pytest.mark.parametrize("is_read", [True, False])
def test_an_erasure_takes_the_states_of_its_product(is_read: bool) -> None:
    other = STATE.replace("0a", "0b")
    run = a_run(1, "staging" if is_read else "published", None if is_read else RUNNING)
    run = run.model_copy(update={"reads": (STATE,) if is_read else ()})
    found = decide_retention(
        facts(
            run, shadows=(STATE, other), erased_tables=frozenset({STATE}), erasure="erasure: 4711",
            scratch_written_at=dict.fromkeys((STATE, other), NOW),
            state_products={STATE: "p", other: "q"},
        )
    )  # fmt: skip
    found.limit_to("p")
    assert names(found) == (([], [STATE]) if is_read else ([STATE], []))
    (item,) = found.kept if is_read else found.retired
    assert item.because == ("bf-1, which is staging, reads it" if is_read else "erasure: 4711")


@pytest.mark.req("X4")
def test_the_product_of_a_state_is_that_of_the_run_that_kept_it() -> None:
    where, found = steps.world()
    run_id = steps.published_run(found)
    marks = {"lakehouse-backfill.base-snapshot-id": "none"}
    where.add(STATE, x="f").properties = marks | {"lakehouse-backfill.run-id": run_id}
    where.add(STATE.replace("0a", "0b"), x="f").properties = marks
    contracts = {PRODUCT: contract()}
    by_age = gather_facts(found, contracts, PRODUCT, "")
    assert (by_age.state_products, by_age.erased_tables) == ({STATE: PRODUCT}, frozenset())
    erased = gather_facts(found, contracts, PRODUCT, "a request")
    assert STATE in erased.erased_tables
    assert gather_facts(found, contracts, None, "").state_products == {}


@pytest.mark.req("X4")
def test_an_open_run_reads_the_state_that_it_starts_from_and_its_own() -> None:
    _, found = steps.world()
    kept = StateSnapshot(table=STATE, snapshot_id=1, checksum="x", key="k", boundary="2020-01-01")
    run_id = steps.approved_run(found, declared(stateful=STATEFUL))
    runs: Any = found.runs
    start = StateStart(kept=kept, run_id="bf-0", why="kept")
    runs.plans[run_id] = with_fields(runs.plans[run_id], resolved__state_start=start)
    reads = gather_facts(found, {}, None, "").runs[run_id].reads
    own = f"{found.profile.shadow_namespace}.lhb_state_"
    assert reads[0] == STATE
    assert [name.startswith(own) for name in reads[1:]] == [True, True]


def test_what_is_not_known_to_be_ours_is_kept() -> None:
    found = decide_retention(
        facts(
            shadows=("shadow.other",), fences=("bf-9",),
            tags={TABLE: {"lhb-v1-000000000000": 3, "lhb-pin-bf-9": 3, "release": 4}},
        )
    )  # fmt: skip
    assert names(found) == (
        [], ["bf-9", "shadow.other", f"{TABLE}@lhb-pin-bf-9", f"{TABLE}@lhb-v1-000000000000"],
    )  # fmt: skip


@pytest.mark.req("U11")
def test_a_shadow_that_an_open_revision_takes_chunks_over_from_is_kept() -> None:
    old = a_run(1, "superseded", OVER)
    revision = a_run(2, "approved", None).model_copy(update={"needs": (old.shadow,)})
    found = decide_retention(facts(old, revision))
    reasons = {item.name: item.because for item in found.kept}
    assert names(found) == ([], ["shadow.s1", "shadow.s2"])
    assert reasons["shadow.s1"] == "bf-2, which is approved, takes chunks over from it"
    closed = revision.model_copy(update={"needs": (), "state": "published", "ends": RUNNING})
    assert names(decide_retention(facts(old, closed))) == (["shadow.s1"], ["shadow.s2"])
