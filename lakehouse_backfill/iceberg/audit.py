"""The logs of all runs, for those who doubt them."""

from __future__ import annotations

from lakehouse_backfill.iceberg.control import ControlTables
from lakehouse_backfill.iceberg.control_schemas import PIPELINE_RUN, RUN_EVENT
from lakehouse_backfill.iceberg.run_rows import chains_of, read_seal
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import Event


class IcebergAudit:
    """`ports.control.Audit` on PyIceberg: reads only."""

    def __init__(self, tables: ControlTables) -> None:
        self._plans = tables.log(PIPELINE_RUN)
        self._events = tables.log(RUN_EVENT)

    def drafts(self) -> tuple[Plan, ...]:
        """Plans that were stored, while their first event was not: cut off in between.

        Also one that is being registered right now.
        """
        # Plans first: one that is registered in between has its event by the second look.
        plans = self._plans.head().rows(columns=("run_id", "plan"))
        begun = {row["run_id"] for row in self._events.head().rows(columns=("run_id",))}
        return tuple(
            Plan.model_validate_json(row["plan"]) for row in plans if row["run_id"] not in begun
        )

    def chains(self) -> dict[str, tuple[Event, ...]]:
        """The events of each run as they are stored, in the order in which they were appended."""
        return chains_of(self._events.head().rows())

    def seal(self) -> tuple[int, str] | None:
        """How many events there are, and the sum of all runs' newest hashes, as last written."""
        return read_seal(self._events.head())
