"""SIGKILL at every fault point, then the same command or `recover`: the result is the same."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from tests.chaos.cases import Case, Outcome
from tests.chaos.faults import Both, Kill, Pause, Record
from tests.chaos.lab import SCOPE, Ended, Lab
from tests.chaos.scenarios import BRANCH_SCENARIOS, RECOVER, SCENARIOS, Scenario


def killed(lab: Lab, case: Case) -> Ended:
    return lab.killed(*lab.typed(case.scenario.command), hook=Kill(case.point, case.nth))


#: On a clone, and on a branch of the target.
EVERY = (*SCENARIOS, *BRANCH_SCENARIOS)
#: Between two commits lie two moments: one goes on by the same command, one by recovery; one of
#: them is enough where that is the same.
CASES = [
    Case(scenario, point, nth, ("again", "recover")[place % 2], killed)
    for scenario in EVERY
    for place, (point, nth) in enumerate(scenario.cases())
    if place % 2 or not scenario.then[0] == scenario.command == RECOVER
]


@pytest.mark.req("T3", "X12")
@pytest.mark.parametrize(
    ("scenario", "isolation"), [(one, one.isolation) for one in EVERY], ids=list(map(str, EVERY))
)
def test_a_verb_passes_exactly_the_points_at_which_it_is_killed(
    lab: Lab, scenario: Scenario, tmp_path: Path
) -> None:
    lab.restore(scenario.state)
    ended = lab.do(*lab.typed(scenario.command), hook=Record(tmp_path / "points"))
    assert ended.code == 0, ended
    assert tuple((tmp_path / "points").read_text().split()) == scenario.points


#: Points that no scenario passes, and why.
ELSEWHERE = {
    "Runs.record_rejects": "only where rows are rejected; killed in contract/test_rejects.py",
    "Runs.renew": "passed while a long step lasts; killed below",
    "Catalog.update_schema": "only with control tables of an older release",
    "Corrections.write": "only for correction events; killed in test_rollout_kills.py",
    "Corrections.append": "only for correction events; killed in test_rollout_kills.py",
    "CorrectionTopics.send": "only with a topic; killed in stack/test_kafka_corrections.py",
    "Topics.commit": "only with a topic; killed in stack/test_kafka_corrections.py",
    "Corrections.compensate": "only for correction events; killed in test_rollout_kills.py",
    "Publisher.carry": "only where a publication catches up; killed in test_catching_up.py",
    "Publisher.adopt_together": "only for several runs; killed in test_together_kills.py",
    "Publisher.revert_together": "only for several products; killed in test_together_kills.py",
    "Publisher.swap_together": "only for several runs; killed in test_together_kills.py",
    "Shadows.evolve": "only with target.schema_change; killed in test_java_kills.py",
    "Shadows.create": "only where a catalog registers none; cut off in contract/test_building.py",
    "Shadows.fill": "only where a catalog registers none; cut off in contract/test_building.py",
    "Shadows.keep": "only for versions by name; killed in test_mode_kills.py",
    "Tables.create": "only for a product that has no table; the same call again does nothing",
    "Pins.unpin": "maintain takes tags out by Pins.expire",
    "Evidence.end_leases": "only by maintain; killed in tests/contract/test_retention.py",
    "Pins.expire": "only by maintain; killed in tests/contract/test_retention.py",
    "RunFiles.delete": "only by maintain; killed in test_run_files_kills.py",
    "Runs.lift_fences": "only by maintain; killed in tests/contract/test_retention.py",
    "Audit.delete_orphans": "only by maintain; killed in tests/contract/test_retention.py",
    "ControlFiles.delete": "only by maintain; killed in tests/contract/test_retention.py",
    "Views.show": "needs Spark; last step but the run's own event, and may be repeated",
    "Staging.keep_intermediates": "only where a job declares one; lake/test_intermediates.py",
    "Spark.keep_intermediate": "needs Spark; killed in lake/test_intermediates.py",
    "Spark.keep_state": "only for a stateful job; killed in lake/test_stateful.py",
    "Spark.create_view": "needs Spark; killed in test_java_kills.py",
    "Views.commit": "needs a REST catalog; one commit, and may be repeated",
    "Hooks.call": "only where a contract has hooks; killed in test_hook_kills.py",
    "Anchor.keep": "only where a profile names an anchor; last of all, tested in core/test_anchors",
    "MigratedTables.commit": "only by product migrate; killed in contract/test_migration.py",
    "MigratedTables.drop": "only by product migrate --undo; killed in contract/test_migration.py",
    "TableCopies.copy": "only by rehearse; killed in contract/test_rehearsal.py",
    "RawTables.commit": "only by land; killed in contract/test_sources.py",
    "RequestSpool.keep": "only by land --listen; killed in contract/test_webhooks.py",
    "RequestSpool.drop": "only by land --listen; killed in contract/test_webhooks.py",
    "ControlLog.file_import_ledger": "only by land; killed in contract/test_sources.py",
    "HandlerTables.commit": "only by replay; killed in contract/test_event_replay.py",
    "ControlLog.processed_event": "only by replay; killed in contract/test_event_replay.py",
    "ControlLog.replay_job": "only by replay; killed in contract/test_event_replay.py",
    "VersionTables.open": "only with a table of versions; killed in test_mode_kills.py",
    "VersionTables.show": "only with a table of versions; killed in test_mode_kills.py",
    "Versions.move_all": "only by several runs at once; killed in test_together_kills.py",
}


@pytest.mark.req("T3")
def test_no_fault_point_is_forgotten() -> None:
    passed = {point for scenario in SCENARIOS for point in scenario.points}
    left = {point.rpartition(":")[0] for point in set(fault_points.all_points()) - passed}
    assert left == set(ELSEWHERE)


@pytest.mark.req("T3", "X9")
@pytest.mark.parametrize("point", ["Runs.renew:before", "Runs.renew:after"])
def test_a_driver_that_dies_while_it_keeps_its_lease_is_followed_by_the_next(
    lab: Lab, point: str
) -> None:
    lab.restore("approved")
    profiles = lab.folder / "catalog" / "profiles.yaml"
    profiles.write_text(profiles.read_text().replace("lease_seconds: 300", "lease_seconds: 3"))
    slow = Both(Pause("Staging.stage:before", 2, seconds=30), Kill(point))
    lab.killed(*lab.typed(("stage", "RUN")), hook=slow)
    lab.must(*lab.typed(("stage", "RUN")))
    assert lab.oracle.attempts() == list(dict.fromkeys(lab.oracle.attempts()))
    assert len(lab.oracle.attempts()) == len(SCOPE)


@pytest.mark.req("T3", "U10", "X12")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_killed_comes_to_the_same_result(
    case: Case, outcomes: dict[Any, Future[Any]]
) -> None:
    outcome: Outcome = outcomes[case].result()
    assert outcome.facts == outcomes[case.scenario].result()
    assert outcome.outside[0] == outcome.outside[1]
    # A chunk that was in flight has left no commit, and one that has is not computed again.
    assert len(outcome.attempts) == len(set(outcome.attempts)) == len(outcome.facts["ledger"])
    assert (outcome.actions, outcome.was_written_to, outcome.deleted) == ([], False, [])
