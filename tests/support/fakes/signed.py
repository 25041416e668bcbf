"""Take a run in prod through its verbs: bob plans and publishes, ana decides, each with a key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.signers import planned_table
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.identity import statement
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps


def prod_world(keys: Keyring, **engine: Any) -> Context:
    """A lake in prod; bob's process, without a key."""
    return keys.acting(steps.world(**engine)[1], None, profile=PROD)


def planned(keys: Keyring, found: Context, wanted: Any = None) -> str:
    return steps.planned_run(keys.acting(found, "bob"), wanted)


def approved(keys: Keyring, found: Context, wanted: Any = None) -> str:
    run_id = planned(keys, found, wanted)
    decisions.approve(keys.acting(found, "ana"), run_id, "ana", "fine")
    return run_id


def accepted(keys: Keyring, found: Context, wanted: Any = None) -> str:
    run_id = approved(keys, found, wanted)
    stage(found, run_id, "bob")
    validate(found, run_id, "bob")
    decisions.accept(keys.acting(found, "ana"), run_id, "ana", "fine")
    return run_id


def published(keys: Keyring, found: Context) -> str:
    run_id = accepted(keys, found)
    publish(keys.acting(found, "bob"), run_id, "bob")
    return run_id


def accepted_but_for_acceptance(keys: Keyring, found: Context) -> str:
    run_id = approved(keys, found)
    stage(found, run_id, "bob")
    validate(found, run_id, "bob")
    return run_id


def envelope_of(keys: Keyring, who: str, document: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The envelope of a statement that `who` signs."""
    payload, message = statement.statement_to_sign(document)
    return statement.Envelope(
        payload_type=statement.PAYLOAD_TYPE,
        payload=payload,
        signature=keys.identity(who).sign(message, who, at),
    ).to_json()


def signed_anew(
    keys: Keyring, who: str, event: Event, plan: Plan, *, is_older: bool = False
) -> Event:
    """The event as `who` signs it with their own key, going around the verbs.

    With `is_older` as an older release signed it: the statement names no table.
    """
    detail = {name: each for name, each in event.detail.items() if name != statement.SIGNATURE}
    bare = event.model_copy(update={"actor": who, "detail": detail})
    table = None if is_older else planned_table(PROD, plan)
    document = statement.decision_statement(bare, plan.manifest_hash, "prod", table)
    envelope = envelope_of(keys, who, document, bare.at)
    return bare.model_copy(update={"detail": {**detail, statement.SIGNATURE: envelope}})
