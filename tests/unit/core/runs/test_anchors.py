"""Heads of logs outside the lake: a history that was made anew as a whole is found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.verification.audit import audit_all
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.publication.rollback_preview import preview_rollback
from lakehouse_backfill.core.runs import anchors
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.domain.run import Event, RunState
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, Tampered
from tests.support.examples.keys import Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.identity import FakeAnchor
from tests.support.fakes.signed import accepted, prod_world, published

E4 = pytest.mark.req("E4")


def anchored() -> tuple[Context, str, FakeAnchor]:
    """A published run whose heads are in an anchor."""
    anchor = FakeAnchor()
    found = dataclasses.replace(steps.world()[1], anchor=anchor)
    run_id = steps.published_run(found)
    anchors.keep_heads(found, [run_id], [PRODUCT])
    return found, run_id, anchor


def by_eve(events: list[Event]) -> list[Event]:
    return [
        event.model_copy(update={"actor": "eve"}) if event.verb == "approve" else event
        for event in events
    ]


@E4
def test_a_log_that_was_made_anew_as_a_whole_is_found_by_the_anchor_alone() -> None:
    found, run_id, _ = anchored()
    assert audit_all(found, with_anchor=True).first_bad is None
    steps.rewrite_log(found, run_id, by_eve)
    assert audit_all(found).first_bad is None
    verdict = audit_all(found, with_anchor=True)
    assert f"{run_id}: the hash of number" in str(verdict.first_bad)
    assert "its history was rewritten" in str(verdict.first_bad)


@E4
def test_a_log_that_is_shorter_than_the_anchor_says_is_found() -> None:
    found, run_id, _ = anchored()
    steps.rewrite_log(found, run_id, lambda events: events[:-1])
    runs: Any = found.runs
    runs.statuses[run_id] = runs.statuses[run_id].model_copy(update={"state": RunState.PUBLISHING})
    verdict = audit_all(found, with_anchor=True)
    assert "the newest were removed" in str(verdict.first_bad)


@E4
def test_a_run_that_was_removed_as_a_whole_is_found() -> None:
    found, run_id, anchor = anchored()
    chains, products = found.audit.chains(), found.audit.products()
    records = anchor.records()
    assert anchors.find_fault(records, "dev", chains, products) is None
    without = {name: chain for name, chain in chains.items() if name != run_id}
    assert f"{run_id} has 0 events" in str(anchors.find_fault(records, "dev", without, products))
    assert "rows of versions" in str(anchors.find_fault(records, "dev", chains, {}))
    # A record of another environment is not about this lake.
    assert anchors.find_fault(records, "prod", {}, {}) is None


@E4
def test_a_failed_record_after_a_publication_is_told_and_recover_writes_it() -> None:
    found, run_id, anchor = anchored()
    anchor.kept.clear()
    anchor.is_down = True
    with pytest.raises(EnvironmentDown, match="it is done, but its record was not kept") as caught:
        anchors.keep_heads(found, [run_id], [PRODUCT])
    assert caught.value.fix.endswith(f"lakehouse-backfill recover {run_id}")
    assert "stays so" in caught.value.state
    anchor.is_down = False
    planned = recover(found, run_id, "bob", dry_run=True)
    assert [one.action for one in planned] == ["anchor the log", "anchor the log"]
    recover(found, run_id, "bob")
    assert len(anchor.kept) == 2
    assert recover(found, None, "bob") == ()
    assert audit_all(found, with_anchor=True).anchored == 2


def test_without_an_anchor_a_comparison_is_refused_and_nothing_is_kept() -> None:
    found = steps.world()[1]
    run_id = steps.published_run(found)
    anchors.keep_heads(found, [run_id], [PRODUCT])
    with pytest.raises(ConfigError, match="names no anchor"):
        audit_all(found, with_anchor=True)


@E4
def test_a_record_of_another_environment_does_not_stand_in_for_one() -> None:
    found = AnchorRecord(kind="run", subject="r", count=2, head="h", environment="dev", at="")

    assert found.name != found.model_copy(update={"environment": "prod"}).name


def in_prod(tmp_path: Path) -> tuple[Context, Keyring, FakeAnchor]:
    """A lake in prod with an anchor, and the keys of its people."""
    keys, anchor = Keyring(tmp_path, "ana", "bob"), FakeAnchor()
    return dataclasses.replace(prod_world(keys), anchor=anchor), keys, anchor


@E4
def test_publish_asks_the_anchor_whether_a_rejection_was_removed(tmp_path: Path) -> None:
    found, keys, _ = in_prod(tmp_path)
    run_id = accepted(keys, found)
    anchors.keep_heads(found, [run_id])
    decisions.reject(found, run_id, "ana", "wrong rates")
    anchors.keep_heads(found, [run_id])
    steps.rewrite_log(found, run_id, lambda events: events[:-1])
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    with pytest.raises(Tampered, match=r"the anchor knows of 8 .* the newest were removed") as seen:
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert (seen.value.exit_code, seen.value.state) == (3, "nothing was published")
    assert seen.value.fix == "lakehouse-backfill audit verify --anchor"
    assert found.versions.history(PRODUCT) == ()
    # The same lake without the anchor cannot know it.
    publish(keys.acting(found, "bob", anchor=None), run_id, "bob")


@E4
def test_publish_asks_the_anchor_for_the_versions_of_the_product(tmp_path: Path) -> None:
    found, keys, anchor = in_prod(tmp_path)
    first = published(keys, found)
    anchors.keep_heads(found, [first], [PRODUCT])
    product = next(one for one in anchor.kept.values() if one.kind == "product")
    moved = product.model_copy(update={"count": product.count + 1})
    anchor.keep(moved)
    second = accepted(keys, found, declared(transform={"version": "2.0.0"}))
    with pytest.raises(Tampered, match=f"{PRODUCT} has 3 rows of versions; the anchor knows of 4"):
        publish(keys.acting(found, "bob"), second, "bob")


@E4
def test_publish_in_prod_does_nothing_while_the_anchor_is_down(tmp_path: Path) -> None:
    found, keys, anchor = in_prod(tmp_path)
    run_id = accepted(keys, found)
    anchor.is_down = True
    with pytest.raises(EnvironmentDown) as seen:
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert seen.value.state == "nothing was published: the anchor could not be asked"
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    anchor.is_down = False
    publish(keys.acting(found, "bob"), run_id, "bob")
    assert steps.state_of(found, run_id) is RunState.PUBLISHED


@E4
def test_rollback_asks_the_anchor_before_it_acts(tmp_path: Path) -> None:
    found, keys, anchor = in_prod(tmp_path)
    run_id = published(keys, found)
    anchors.keep_heads(found, [run_id], [PRODUCT])
    bob, before = keys.acting(found, "bob"), found.versions.history(PRODUCT)
    way = plan_rollback(bob, PRODUCT, 0, ())
    anchor.is_down = True
    with pytest.raises(EnvironmentDown) as down:
        rollback(bob, contract(), way, "wrong", "bob")
    assert down.value.state == "nothing was rolled back: the anchor could not be asked"
    anchor.is_down = False
    steps.rewrite_log(found, run_id, by_eve)
    for act in (
        lambda: rollback(bob, contract(), way, "wrong", "bob"),
        lambda: preview_rollback(bob, contract(), way, "bob"),
    ):
        with pytest.raises(Tampered, match="its history was rewritten") as seen:
            act()
        assert seen.value.state == "nothing was rolled back"
    assert found.versions.history(PRODUCT) == before
