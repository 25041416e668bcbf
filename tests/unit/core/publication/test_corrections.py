"""Correction events: the table stays, what differs is told once, and can be taken back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError, TargetChanged, Unsupported
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.rollout import FakeCorrections
from tests.support.fakes.steps import accepted_run, published_run, roll_back, state_of, world

pytestmark = pytest.mark.req("U9")
SINK = "silver.daily_corrections"


def _wanted(first: str = "2020-01-02", stop: str = "2020-01-04", **sink: Any) -> Any:
    target = {"publish_mode": "correction_events", "corrections": {"table": SINK} | sink}
    return declared(first, stop, target=target)


def _events(found: Context) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = found.corrections.events(SINK)  # type: ignore[attr-defined]
    return events


def test_one_event_for_each_key_and_the_table_stays_as_it_is() -> None:
    where, found = world()
    run_id = accepted_run(found, _wanted())
    before = where.tables[PRODUCT].head
    done = publish(found, run_id, "bob")
    assert where.tables[PRODUCT].head == before
    assert done.publication.table == SINK
    assert state_of(found, run_id) is RunState.PUBLISHED
    told = [
        (e["event_type"], e["partition"], json.loads(e["old"])["files"]) for e in _events(found)
    ]
    assert told == [
        ("correction", "2020-01-02", ["old-2"]), ("correction", "2020-01-03", ["old-3"]),
    ]  # fmt: skip
    first = _events(found)[0]
    assert json.loads(first["new"])["files"] == [f"{run_id}/2020-01-02"]
    assert first["key"] == '{"day":"2020-01-02"}'
    assert (first["produced_by_run_id"], first["reason_code"]) == (run_id, "bug_fix")
    assert first["publication"] == done.publication.token
    seen = resolve_accepted(found, contract(), strict=True)
    assert (seen.table, seen.snapshot_id, seen.version) == (PRODUCT, before, 1)


def test_a_retraction_and_an_addition_where_that_is_asked_for() -> None:
    found = context(lake())
    published_run(found, _wanted(**{"as": "retraction"}))
    told = [(e["event_type"], e["old"] is None, e["new"] is None) for e in _events(found)]
    assert told == [("retraction", False, True), ("addition", True, False)] * 2
    retraction, addition = _events(found)[:2]
    assert addition["corrects_event_id"] == retraction["event_id"]


def test_a_rollback_takes_events_back_by_their_reverse_last_ones_first() -> None:
    found = context(lake())
    run_id = published_run(found, _wanted())
    written = _events(found)
    roll_back(found, 0)
    taken = _events(found)[2:]
    assert [(e["old"], e["new"]) for e in taken] == [
        (e["new"], e["old"]) for e in reversed(written)
    ]
    assert [e["corrects_event_id"] for e in taken] == [e["event_id"] for e in reversed(written)]
    assert {e["reason_code"] for e in taken} == {"rollback"}
    assert state_of(found, run_id) is RunState.ROLLED_BACK
    again = publish(found, run_id, "bob")
    assert again.publication.version == 2
    ids = [e["event_id"] for e in _events(found)]
    assert len(ids) == len(set(ids)) == 6


def test_a_rollback_of_some_partitions_takes_their_events_back() -> None:
    found = context(lake())
    published_run(found, _wanted())
    roll_back(found, 0, ("2020-01-03",))
    assert [e["partition"] for e in _events(found)[2:]] == ["2020-01-03"]


def test_a_rollback_of_events_and_of_the_table_at_once_is_refused() -> None:
    found = context(lake())
    published_run(found, _wanted())
    published_run(found, declared("2020-01-01", "2020-01-02"))
    with pytest.raises(Unsupported, match="both the table and its correction events"):
        roll_back(found, 0)
    roll_back(found, 1)
    roll_back(found, 0)


def test_a_live_change_of_the_rows_to_correct_is_a_conflict() -> None:
    where, found = world()
    run_id = accepted_run(found, _wanted())
    where.write(PRODUCT, "2020-01-03", "live")
    with pytest.raises(TargetChanged):
        publish(found, run_id, "bob")
    assert (_events(found), state_of(found, run_id)) == ([], RunState.ACCEPTED)


def test_events_on_rows_that_were_corrected_before_wait_until_those_are_taken_back() -> None:
    found = context(lake())
    first = published_run(found, _wanted())
    second = accepted_run(found, _wanted("2020-01-03", "2020-01-05"))
    with pytest.raises(Unsupported, match=f"correction events of {first}"):
        publish(found, second, "bob")
    roll_back(found, 0)
    publish(found, second, "bob")


@pytest.mark.req("U10")
@pytest.mark.parametrize("by", ["publish", "recover"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before the append", "after it"])
def test_events_of_a_publication_that_was_cut_off_are_written_once(by, *, is_late) -> None:
    found = context(lake())
    run_id = accepted_run(found, _wanted())

    class Dies(FakeCorrections):
        def write(self, *arguments: Any) -> Any:
            if is_late:
                super().write(*arguments)
            raise KeyboardInterrupt

    dying = Dies(found.corrections.tables)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        publish(dataclasses.replace(found, corrections=dying), run_id, "bob")
    if by == "publish":
        publish(found, run_id, "bob")
    else:
        recover(found, run_id, "ana")
    assert len(_events(found)) == 2
    assert state_of(found, run_id) is RunState.PUBLISHED


@pytest.mark.parametrize(
    ("sink", "error", "said"),
    [
        ({"topic": "orders"}, Unsupported, "a live topic must be guarded and opted in"),
        ({"table": PRODUCT}, ConfigError, "the product's own table"),
    ],
)
def test_a_sink_that_is_none_is_refused_when_planned(sink, error, said) -> None:
    switched = {"catalog": {"name": "lake"}, "switches": {"live_topic": True}}
    found = dataclasses.replace(context(lake()), profile=Profile.model_validate(switched))
    with pytest.raises(error, match=said):
        make_plan(found, _wanted(**sink), "bob", None)


def test_the_contract_may_name_the_table_of_events() -> None:
    target = {"publish_mode": "correction_events"}
    wanted = declared(target=target, contract=contract(corrections={"table": SINK}))
    found = context(lake())
    published_run(found, wanted)
    assert len(_events(found)) == 2
    with pytest.raises(ConfigError, match="needs a table for the events"):
        make_plan(context(lake()), declared(target=target), "bob", None)


def test_a_table_of_events_without_that_mode_is_a_mistake() -> None:
    wanted = _wanted()
    target = wanted.manifest.target.model_copy(update={"publish_mode": "replace_partitions"})
    manifest = wanted.manifest.model_copy(update={"target": target})
    with pytest.raises(ConfigError, match="only for publish_mode correction_events"):
        make_plan(context(lake()), dataclasses.replace(wanted, manifest=manifest), "bob", None)


def test_a_partition_that_events_stand_for_is_not_replaced_under_them() -> None:
    where, found = world()
    published_run(found, _wanted())
    head = where.tables[PRODUCT].head
    run_id = accepted_run(found, declared("2020-01-03", "2020-01-04"))
    with pytest.raises(
        Unsupported, match=r"correction events of .* stand for 2020-01-03"
    ) as caught:
        publish(found, run_id, "bob")
    assert "rollback" in caught.value.fix
    assert where.tables[PRODUCT].head == head
    assert state_of(found, run_id) is RunState.ACCEPTED
    roll_back(found, 0)
    assert publish(found, run_id, "bob").publication.version == 2
