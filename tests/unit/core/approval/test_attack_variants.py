"""Variants of attacks: statements that are signed well and are others, and clocks set back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions, signatures
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.signers import planned_table
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.errors import ApprovalMissing, NotAllowed, Tampered
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, FixedClock, contract
from tests.support.fakes.signed import (
    accepted,
    accepted_but_for_acceptance,
    envelope_of,
    planned,
    prod_world,
    published,
)

pytestmark = pytest.mark.req("E4")


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, "ana", "bob", "eve")


def with_subject(document: dict[str, Any]) -> None:
    document["subject"].append({"name": "another run", "digest": {"sha256": "0" * 64}})


def with_digest(document: dict[str, Any]) -> None:
    document["subject"][0]["digest"] = {"sha1": "0" * 40}


def with_product(document: dict[str, Any]) -> None:
    document["predicate"]["product"] = "silver.other"


def with_type(document: dict[str, Any]) -> None:
    document["predicateType"] = statement.PUBLICATION_TYPE


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (with_subject, "subject"), (with_digest, "subject"), (with_product, "product"),
        (with_type, "predicateType"),
    ],
)  # fmt: skip
def test_a_statement_that_its_owner_signed_and_that_is_another_opens_nothing(
    keys: Keyring, edit: Callable[[dict[str, Any]], None], field: str
) -> None:
    found = prod_world(keys)
    run_id = accepted(keys, found)
    plan = found.runs.plan(run_id)
    accept = found.runs.events(run_id)[-1]
    detail = {name: each for name, each in accept.detail.items() if name != statement.SIGNATURE}
    bare = accept.model_copy(update={"detail": detail})
    document = statement.decision_statement(
        bare, plan.manifest_hash, "prod", planned_table(PROD, plan)
    )
    edit(document)
    signed = {**detail, statement.SIGNATURE: envelope_of(keys, "ana", document, bare.at)}
    forged = bare.model_copy(update={"detail": signed})
    steps.rewrite_log(found, run_id, lambda events: [*events[:-1], forged])
    with pytest.raises(ApprovalMissing, match=f"something else; it differs in .*{field}"):
        publish(keys.acting(found, "bob"), run_id, "bob")
    assert found.versions.history(PRODUCT) == ()


class LaterClock(FixedClock):
    """The clock of the fakes, two days later."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=2)


def accepted_later(keys: Keyring, by: str) -> tuple[Context, str]:
    """A run whose result was accepted two days after its approval; the clock is set back then."""
    found = prod_world(keys)
    run_id = accepted_but_for_acceptance(keys, found)
    decisions.accept(keys.acting(found, by, clock=LaterClock()), run_id, by, "fine")
    return found, run_id


def revoked(keys: Keyring, found: Context, who: str) -> None:
    at = found.clock.now() + timedelta(days=1)
    keys.list_keys(**{who: f'valid-before="{at:%Y%m%d%H%M%S}"'})


def test_a_clock_that_is_set_back_does_not_renew_the_key_of_a_decision(keys: Keyring) -> None:
    found, run_id = accepted_later(keys, "eve")
    revoked(keys, found, "ana")
    with pytest.raises(ApprovalMissing, match=r"approve .*key has expired"):
        publish(keys.acting(found, "bob"), run_id, "bob")


def test_a_clock_that_is_set_back_does_not_renew_the_key_of_a_publisher(keys: Keyring) -> None:
    found, run_id = accepted_later(keys, "ana")
    revoked(keys, found, "eve")
    with pytest.raises(NotAllowed, match=r"eve cannot be the one who signs: .*expired"):
        publish(keys.acting(found, "eve"), run_id, "eve")
    assert found.versions.history(PRODUCT) == ()
    later = keys.acting(found, "bob", clock=LaterClock())
    publish(later, run_id, "bob")
    eve = keys.acting(found, "eve")
    with pytest.raises(NotAllowed, match=r"eve cannot be the one who signs: .*expired"):
        rollback(eve, contract(), plan_rollback(eve, PRODUCT, 0, ()), "wrong", "eve")


def test_two_keys_of_one_person_are_not_four_eyes(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = planned(keys, found)
    keys.keys["bob2"] = keys.add_ssh_key("bob2")
    keys.list_keys()
    listed = keys.signers.read_text().replace("bob2 ", "bob ")
    keys.signers.write_text(listed)
    with pytest.raises(NotAllowed, match="bob"):
        decisions.approve(keys.acting(found, "bob2"), run_id, "bob", "fine")


def test_what_dev_decided_without_a_key_is_not_published_under_prod(keys: Keyring) -> None:
    dev = steps.world()[1]
    run_id = steps.accepted_run(dev)
    bob = keys.acting(dev, "bob", profile=PROD)
    with pytest.raises(ApprovalMissing, match="not signed") as seen:
        publish(bob, run_id, "bob")
    assert seen.value.exit_code == 3
    # Nor where somebody edits the plan, so that it is one of prod.
    runs: Any = dev.runs
    plan = runs.plan(run_id)
    resolved = plan.resolved.model_copy(update={"environment": "prod"})
    edited = {"resolved": resolved, "manifest_hash": resolved.manifest_hash}
    assert edited["manifest_hash"] != plan.manifest_hash
    runs.plans[run_id] = plan.model_copy(update=edited)
    with pytest.raises((ApprovalMissing, Tampered)):
        publish(bob, run_id, "bob")
    assert dev.versions.history(PRODUCT) == ()


def test_a_signature_of_a_publication_is_not_one_of_another_row(keys: Keyring) -> None:
    found = prod_world(keys)
    run_id = published(keys, found)
    row = found.versions.history(PRODUCT)[0]
    plan = found.runs.plan(run_id)
    for update in ({"version": 7}, {"token": "t"}, {"supersedes": 3}, {"by": "eve"}):
        moved = row.model_copy(update=update)
        assert "differs in" in signatures.published_fault(found, plan, moved)
