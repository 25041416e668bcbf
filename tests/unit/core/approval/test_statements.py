"""Statements name their table; those of older releases, which do not, vouch for the past only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.evidence.verification.audit import audit_all
from lakehouse_backfill.core.evidence.verification.verify import verify
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import Blocked
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract
from tests.support.fakes.signed import accepted, envelope_of, prod_world, published, signed_anew

E4 = pytest.mark.req("E4")
ELSEWHERE = PROD.model_copy(update={"catalog": {"name": "copy"}})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob")


def predicate_of(stored: Any) -> dict[str, Any]:
    document = json.loads(stored) if isinstance(stored, str) else stored
    predicate = json.loads(statement.Envelope.from_json(document).statement)["predicate"]
    return dict(predicate)


def newest(found: Context) -> Publication:
    return found.versions.history(PRODUCT)[0]


def with_target(found: Context, run_id: str, **update: Any) -> None:
    """Edit what the plan says of its target, but not its hash."""
    runs: Any = found.runs
    plan = runs.plans[run_id]
    target = plan.resolved.target.model_copy(update=update)
    resolved = plan.resolved.model_copy(update={"target": target})
    runs.plans[run_id] = plan.model_copy(update={"resolved": resolved})


@E4
def test_each_statement_names_catalog_table_uuid_and_base_snapshot(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    target = found.runs.plan(run_id).resolved.target
    table = {
        "catalog": "lake", "name": PRODUCT, "uuid": target.uuid,
        "base_snapshot_id": target.snapshot_id, "control": "lakehouse_backfill",
    }  # fmt: skip
    assert None not in table.values()
    signed = [
        one.detail["signature"] for one in found.runs.events(run_id) if "signature" in one.detail
    ]
    assert [predicate_of(each)["table"] for each in (*signed, newest(found).signature)] == [
        table
    ] * 4
    head = newest(found).snapshot_id
    bob = keys.acting(found, "bob")
    rollback(bob, contract(), plan_rollback(bob, PRODUCT, 0, ()), "wrong", "bob")
    rolled_back = predicate_of(newest(found).signature)["table"]
    assert rolled_back == table | {"base_snapshot_id": head}
    rollback(bob, contract(), plan_rollback(bob, PRODUCT, 1, ()), "right", "bob")
    verdict = audit_all(found)
    assert (verdict.first_bad, verdict.signed, verdict.unsigned) == (None, 6, 0)


@E4
@pytest.mark.parametrize("how", ["catalog", "uuid", "base_snapshot_id", "name", "control"])
def test_a_decision_holds_for_its_catalog_and_table_alone(keys: Keyring, how: str) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    if how == "catalog":
        found = dataclasses.replace(found, profile=ELSEWHERE)
    elif how == "control":  # the control tables were copied
        profile = found.profile.model_copy(update={"control_namespace": "copied"})
        found = dataclasses.replace(found, profile=profile)
    else:
        field = {"uuid": "uuid", "base_snapshot_id": "snapshot_id", "name": "table"}[how]
        with_target(found, run_id, **{field: "another" if field != "snapshot_id" else 7})
    with pytest.raises(Blocked, match=rf"plan .*for something else; it differs in table\.{how}"):
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert found.versions.history(PRODUCT) == ()


@E4
def test_a_pending_publication_holds_for_its_table_alone(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    row, plan = newest(found), found.runs.plan(run_id)
    assert signatures.pending_publication_fault(found, plan, row) == ""
    elsewhere = dataclasses.replace(found, profile=ELSEWHERE)
    fault = signatures.pending_publication_fault(elsewhere, plan, row)
    assert "it differs in table.catalog" in fault
    # The name of a catalog is one of the profile: history does not go by it.
    assert signatures.check_publication(elsewhere, row).is_signed
    for update in ({"uuid": "another"}, {"snapshot_id": 7}, {"table": "silver.other"}):
        with_target(found, run_id, **update)
        field = {"uuid": "uuid", "snapshot_id": "base_snapshot_id", "table": "name"}[
            next(iter(update))
        ]
        assert f"table.{field}" in signatures.check_publication(found, row).fault
        assert f"table.{field}" in signatures.pending_publication_fault(found, plan, row)


def as_older(keys: Keyring, found: Context, run_id: str) -> None:
    """Sign a run as an older release did: no statement names a table."""
    plan = found.runs.plan(run_id)
    signers = {"plan": "bob", "approve": "ana", "accept": "ana"}
    runs: Any = found.runs
    previous, log = "", []
    for event in list(runs.log[run_id]):
        linked = event.model_copy(update={"previous": previous})
        who = signers.get(event.verb)
        log.append(signed_anew(keys, who, linked, plan, is_older=True) if who else linked)
        steps.rewrite_log(found, run_id, lambda _: list(log))
        previous = runs.log[run_id][-1].hash


@E4
def test_older_statements_verify_as_history_and_open_nothing(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    as_older(keys, found, run_id)
    stored = found.runs.events(run_id)[1].detail["signature"]
    document = json.loads(statement.Envelope.from_json(stored).statement)
    assert document["predicateType"] == "urn:lakehouse-backfill:decision:v1"
    assert "table" not in document["predicate"]
    checks = {one.name: one.ok for one in verify(found, run_id).checks}
    assert [ok for name, ok in checks.items() if name.startswith("signature")] == [True] * 3
    with pytest.raises(Blocked, match=r"plan .*it differs in table, predicateType") as caught:
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert caught.value.exit_code == 3


@E4
def test_an_older_publication_and_rollback_verify_as_history(keys: Keyring) -> None:
    found = prod_world(keys)
    published(keys, found)
    bob = keys.acting(found, "bob")
    rollback(bob, contract(), plan_rollback(bob, PRODUCT, 0, ()), "wrong", "bob")
    for row in found.versions.history(PRODUCT):
        if row.action not in ("publish", "rollback"):
            continue
        at = predicate_of(row.signature)["at"]
        older = statement.publication_statement(row, "prod", at, None)
        envelope = canonical_json(envelope_of(keys, "bob", older, row.at))
        signed = row.model_copy(update={"signature": envelope})
        assert signatures.check_publication(found, signed).is_signed
        fault = signatures.check_publication(found, signed, is_pending=True).fault
        assert "it differs in table, predicateType" in fault
        other = signed.model_copy(update={"token": "f00d"})
        assert "token" in signatures.check_publication(found, other).fault


@E4
def test_history_is_verified_where_the_plan_is_gone(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    row, runs = newest(found), found.runs
    events = found.runs.events(run_id)
    plans: Any = runs
    del plans.plans[run_id]
    assert signatures.check_publication(found, row).is_signed
    assert all(one.is_signed for one in signatures.run_verdicts(found, events, (row,)))
