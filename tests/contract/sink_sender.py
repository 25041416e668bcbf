"""A process that sends one message of one run, and may be killed on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from lakehouse_backfill.adapters.system.hooks import LocalHooks
from lakehouse_backfill.core.guards.outside.effect_log import recorded_messages
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.staging.sinks import RunSinks
from lakehouse_backfill.errors import BackfillError
from lakehouse_backfill.fault_points import install_hook, watch_ports
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import control_ports


def send_message(
    folder: Path, address: str, is_idempotent: bool, moment: str, reason: str, said: Path
) -> None:
    """Send, and write down how that ended; die at the moment, for example `Hooks.call:after 1`."""
    sink = {"name": "crm", "type": "ticket", "webhook": address, "idempotent": is_idempotent}
    evidence = control_ports(catalog_of(folder)).evidence
    found = context(lake(), hooks=LocalHooks(folder), evidence=evidence)
    plans = {}
    for name in ("first", "second"):  # the runs are the same ones in each process
        wanted = declared(
            contract=contract(sinks=[sink], roles={"approve": ["ana"]}),
            safety={"sinks": {"crm": "dedupe"}}, run={"reason": name},
        )  # fmt: skip
        plans[name] = register_plan(found, make_plan(found, wanted, "bob", None), "bob")[0]
    plan = plans[reason]
    seen: list[str] = []

    def kill(point: str) -> None:
        seen.append(point)
        if f"{point} {seen.count(point)}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    install_hook(kill)
    try:
        RunSinks(watch_ports(found), plan, 0).send("crm", "order-1", {"text": "late"})
        ended = "done"
    except BackfillError as error:
        ended = error.code
    outcomes = [one["outcome"] for one in recorded_messages(found, plan.run_id)]
    said.write_text(json.dumps([ended, outcomes]), encoding="utf-8")
