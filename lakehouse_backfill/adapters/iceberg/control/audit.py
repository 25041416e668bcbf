"""The logs of all runs, for those who doubt them."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_schemas import (
    ACCEPTED_OUTPUT_VERSION,
    PIPELINE_RUN,
    RUN_EVENT,
)
from lakehouse_backfill.adapters.iceberg.control.run_rows import read_event_chains, read_seal
from lakehouse_backfill.adapters.iceberg.control.versions import read_products
from lakehouse_backfill.core.runs.sealed import open_plan
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import Tampered

_PLAN_COLUMNS = ("run_id", "plan", "manifest_hash")


class IcebergAudit:
    """`ports.control.Audit` on PyIceberg: reads only."""

    def __init__(self, tables: ControlTables) -> None:
        self._plans = tables.log(PIPELINE_RUN)
        self._events = tables.log(RUN_EVENT)
        self._versions = tables.log(ACCEPTED_OUTPUT_VERSION)

    def drafts(self) -> tuple[Plan, ...]:
        """Plans that were stored, while their first event was not: cut off in between.

        Also one that is being registered right now; one that was edited is left out.
        """
        # Plans first: one that is registered in between has its event by the second look.
        plans = self._plans.head().rows(columns=_PLAN_COLUMNS)
        begun = {row["run_id"] for row in self._events.head().rows(columns=("run_id",))}
        found = (_open_plan_or_error(row) for row in plans if row["run_id"] not in begun)
        return tuple(plan for plan in found if isinstance(plan, Plan))

    def bad_plans(self) -> dict[str, str]:
        """Say of each stored plan that is not the one that was made what is wrong with it."""
        found = {
            row["run_id"]: _open_plan_or_error(row)
            for row in self._plans.head().rows(columns=_PLAN_COLUMNS)
        }
        return {
            run_id: plan.problem for run_id, plan in found.items() if isinstance(plan, Tampered)
        }

    def chains(self) -> dict[str, tuple[Event, ...]]:
        """The events of each run as they are stored, in the order in which they were appended."""
        return read_event_chains(self._events.head().rows())

    def seal(self) -> tuple[int, str] | None:
        """How many events there are, and the sum of all runs' newest hashes, as last written."""
        return read_seal(self._events.head())

    def products(self) -> dict[str, tuple[tuple[Publication, ...], Pointer | None]]:
        """The rows of each product, oldest first, and its pointer, as they are stored.

        All of one moment. None: the pointer is gone, or is none any more.
        """
        return read_products(self._versions.head())


def _open_plan_or_error(row: dict[str, Any]) -> Plan | Tampered:
    try:
        return open_plan(row["run_id"], row["plan"], row["manifest_hash"])
    except Tampered as error:
        return error
