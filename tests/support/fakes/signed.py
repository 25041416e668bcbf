"""Take a run in prod through its verbs: bob plans and publishes, ana decides, each with a key."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from tests.support.examples.keys import PROD, Keyring
from tests.support.fakes import steps


def prod_world(keys: Keyring, **engine: Any) -> Context:
    """A lake in prod; bob's process, without a key."""
    return keys.acting(steps.world(**engine)[1], None, profile=PROD)


def approved(keys: Keyring, found: Context, wanted: Any = None) -> str:
    run_id = steps.planned_run(found, wanted)
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
