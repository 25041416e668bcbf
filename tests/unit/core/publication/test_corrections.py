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
from lakehouse_backfill.core.versions.correction_topic import TOPIC_LEDGER, give_up
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import (
    Blocked,
    ConfigError,
    NotFound,
    SourceDown,
    TargetChanged,
    Unsupported,
)
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.rollout import FakeCorrections, FakeCorrectionTopics
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


def test_a_sink_that_is_none_is_refused_when_planned() -> None:
    with pytest.raises(ConfigError, match="the product's own table"):
        make_plan(context(lake()), _wanted(table=PRODUCT), "bob", None)


def _switched(*, is_on: bool = True) -> Context:
    profile = {"catalog": {"name": "lake"}, "switches": {"live_topic": is_on}}
    return dataclasses.replace(context(lake()), profile=Profile.model_validate(profile))


def _into_topic(first: str = "2020-01-02", stop: str = "2020-01-04", **more: Any) -> Any:
    topic = {"name": "corrections", "bootstrap_servers": "127.0.0.1:1"} | more
    return _wanted(first, stop, topic=topic)


def _records(found: Context, name: str = "corrections") -> list[Any]:
    topics: FakeCorrectionTopics = found.correction_topics  # type: ignore[assignment]
    return topics.records.setdefault(name, [])


def test_a_live_topic_is_refused_unless_it_is_switched_on_and_declared_as_shared() -> None:
    with pytest.raises(Blocked, match=r"topics of .* are switched off"):
        make_plan(_switched(is_on=False), _into_topic(), "bob", None)
    found = _switched()
    _records(found).append(({}, {"order": 1}))
    with pytest.raises(Blocked, match=r"corrections\[0\] offset 0: it is a live topic"):
        make_plan(found, _into_topic(), "bob", None)
    shared = make_plan(found, _into_topic(shared=True), "bob", None)
    assert any("is declared as shared" in note for note in shared.notes)
    notes = make_plan(_switched(), _into_topic(), "bob", None).notes
    assert any("the topic corrections, too; no record was found in it" in note for note in notes)


def test_a_topic_that_became_live_before_the_publication_is_refused_before_any_event() -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())
    _records(found).append(({}, {"order": 1}))
    with pytest.raises(Blocked, match="it is a live topic") as refused:
        publish(found, run_id, "bob")
    assert refused.value.state == "nothing was published"
    assert (_events(found), len(_records(found))) == ([], 1)


def test_a_topic_that_got_partitions_since_the_plan_is_refused_before_any_event() -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())
    assert found.runs.plan(run_id).resolved.topic_partitions == 1
    found.correction_topics.partitions = 2  # type: ignore[attr-defined]
    with pytest.raises(Blocked, match="has 2 partitions, and had 1") as refused:
        publish(found, run_id, "bob")
    assert refused.value.state == "nothing was published"
    assert (_events(found), _records(found)) == ([], [])


def test_values_of_restricted_columns_are_sent_to_no_topic() -> None:
    privacy = {"columns": {"amount": {"classification": "restricted"}}}
    topic = {"name": "corrections", "bootstrap_servers": "127.0.0.1:1"}
    target = {"publish_mode": "correction_events", "corrections": {"table": SINK, "topic": topic}}
    hidden = contract(privacy=privacy)
    with pytest.raises(Unsupported, match="would leave the lake"):
        make_plan(_switched(), declared(target=target, contract=hidden), "bob", None)


def test_events_are_sent_once_after_the_act_with_the_headers_of_their_run() -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())
    assert _records(found) == []
    publish(found, run_id, "bob")
    publish(found, run_id, "bob")
    sent = _records(found)
    assert [event for _, event in sent] == _events(found)
    pin = found.runs.plan(run_id).resolved.sources[0]
    own = {
        "x-run-id": run_id, "x-processing-mode": "backfill", "x-transform-version": "1.0.0",
        "x-input-snapshot": f"{pin.name}={pin.snapshot_id}",
    }  # fmt: skip
    assert all(own.items() <= headers.items() for headers, _ in sent)
    roll_back(found, 0)
    assert [event for _, event in _records(found)] == _events(found)
    assert len(_events(found)) == 4
    publish(found, run_id, "bob")
    assert [event for _, event in _records(found)] == _events(found)
    assert recover(found, None, "ana") == ()


@pytest.mark.req("U10")
@pytest.mark.parametrize("is_late", [False, True], ids=["before it was sent", "after it"])
@pytest.mark.parametrize("way", ["publish", "recover", "next run", "rollback"])
def test_events_that_a_topic_lacks_are_sent_by_the_next_act_or_recovery(way, *, is_late) -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())

    class Down(FakeCorrectionTopics):
        def send(self, *arguments: Any) -> Any:
            if is_late:
                super().send(*arguments)
            raise SourceDown("no broker", state="the source's", fix="later")

    down = Down(found.correction_topics.records)  # type: ignore[attr-defined]
    with pytest.raises(SourceDown) as caught:
        publish(dataclasses.replace(found, correction_topics=down), run_id, "bob")
    assert "version 1 of silver.daily is accepted" in caught.value.state
    assert "recover" in caught.value.fix
    assert state_of(found, run_id) is RunState.PUBLISHED
    if way == "publish":
        publish(found, run_id, "bob")
    elif way == "recover":
        assert [one.is_done for one in recover(found, None, "ana")] == [True]
    elif way == "rollback":
        roll_back(found, 0)
    else:
        published_run(found, declared("2020-01-04", "2020-01-05"))
    assert [event for _, event in _records(found)] == _events(found)
    assert len(_events(found)) == (4 if way == "rollback" else 2)


@pytest.mark.req("U10", "T3")
def test_a_kill_between_acceptance_and_the_last_record_loses_and_doubles_no_event() -> None:
    """The points of a topic are those after the publication is accepted; each kills once."""
    first = other_process(_switched())
    run_id = accepted_run(first, _into_topic())
    with killed_at(0) as reached:
        publish(first, run_id, "bob")
    accepted = max(n for n, point in enumerate(reached) if point == "Versions.move:after")
    assert "CorrectionTopics.send:after" in reached[accepted:]
    assert reached[accepted:].count("Evidence.record:after") == 3
    for moment in range(accepted + 1, len(reached) + 1):
        found = _switched()
        run_id = accepted_run(found, _into_topic())
        with pytest.raises(Killed), killed_at(moment):
            publish(other_process(found), run_id, "bob")
        if moment % 2:
            publish(found, run_id, "ana")
        else:
            recover(found, None, "ana")
        sent = [event["event_id"] for _, event in _records(found)]
        assert sent == [event["event_id"] for event in _events(found)], reached[moment - 1]
        assert (len(sent), recover(found, None, "ana")) == (2, ())


def test_events_that_can_never_be_sent_are_given_up_by_who_may_publish() -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())

    class Gone(FakeCorrectionTopics):
        def send(self, *_: Any) -> Any:
            raise Blocked("it is not the topic that the sending began with", state="", fix="")

    gone = dataclasses.replace(found, correction_topics=Gone())
    for act in (publish, publish):
        with pytest.raises(Blocked, match="not the topic") as refused:
            act(gone, run_id, "bob")
        assert f"recover {run_id} --give-up-topic" in refused.value.fix
    assert give_up(gone, run_id, "bob", "gone") == ("events of version 1 to corrections",)
    assert recover(gone, None, "ana") == ()
    with pytest.raises(NotFound):
        give_up(gone, run_id, "bob", "gone")
    published_run(gone, declared("2020-01-04", "2020-01-05"))
    assert _records(found) == []
    (*_, last) = found.evidence.all_of(run_id, TOPIC_LEDGER)
    assert (last["given_up_by"], last["reason"], last["is_sent"]) == ("bob", "gone", True)


def test_a_topic_that_is_switched_off_meanwhile_gets_nothing() -> None:
    found = _switched()
    run_id = accepted_run(found, _into_topic())
    off = dataclasses.replace(found, profile=_switched(is_on=False).profile)
    with pytest.raises(Blocked, match="switched off"):
        publish(off, run_id, "bob")
    assert (_events(found), _records(found)) == ([], [])


def test_events_in_force_that_went_to_no_topic_are_taken_back_first() -> None:
    found = _switched()
    published_run(found, _wanted())
    with pytest.raises(Unsupported, match="are in force, and went to no topic"):
        make_plan(found, _into_topic("2020-01-04", "2020-01-05"), "bob", None)
    roll_back(found, 0)
    published_run(found, _into_topic("2020-01-04", "2020-01-05"))
    assert len(_records(found)) == 1


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
