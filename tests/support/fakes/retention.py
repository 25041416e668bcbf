"""In-memory stand-ins of `lakehouse_backfill/ports/control.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.rollout import (
    ExpirationResult,
    OrphanFiles,
    PinLease,
    StagedFiles,
    StagedShadow,
)
from lakehouse_backfill.errors import Conflict, NotFound
from tests.support.fakes.control import FakeFences, FakeRuns
from tests.support.fakes.lake import FakeLake


class FakePinLeases:
    """`ports.control.PinLeases` in a dictionary; ends are remembered."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], PinLease] = {}
        self.ended: list[PinLease] = []

    def grant(self, leases: tuple[PinLease, ...]) -> None:
        for lease in leases:
            self.held.setdefault((lease.table, lease.tag), lease)

    def end(self, leases: tuple[PinLease, ...]) -> None:
        for lease in leases:
            if self.held.pop((lease.table, lease.tag), None) is not None:
                self.ended.append(lease.model_copy(update={"action": "end"}))

    def standing(self) -> tuple[PinLease, ...]:
        return tuple(self.held.values())


class FakeUpkeep:
    """`ports.control.Upkeep` on the in-memory lake."""

    def __init__(self, lake: FakeLake) -> None:
        self.lake = lake

    def shadows(self) -> dict[str, int]:
        mark = "lakehouse-backfill.base-snapshot-id"
        found = [name for name, table in self.lake.tables.items() if mark in table.properties]
        return {
            name: 100 * sum("chunk" in one for one in self.lake.tables[name].summaries)
            for name in found
        }

    def tags(self, table: str) -> dict[str, int] | None:
        found = self.lake.tables.get(table)
        if found is None:
            return None
        return {name: held for name, held in found.refs.items() if name.startswith("lhb-")}

    def written(self, table: str) -> datetime | None:
        return None

    def would_let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        held = self.tags(table) or {}
        return ExpirationResult(tags=tuple(name for name in tags if held.get(name) == tags[name]))

    def let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        done = self.would_let_go(table, tags, at_once=at_once)
        if done.tags:
            self.lake.calls.append(f"let go {table}")
        for name in done.tags:
            del self.lake.tables[table].refs[name]
        return done

    def dangers(self, table: str) -> dict[int, str]:
        return {}


class FakeRunFiles:
    """`ports.control.RunFiles`: no table holds what a run staged; deletions are remembered."""

    def __init__(self, lake: FakeLake) -> None:
        self.lake = lake
        self.deleted: set[str] = set()

    def describe(self, shadow: str) -> dict[str, Any] | None:
        if shadow not in self.lake.tables:
            return None
        return {"location": shadow, "metadata_file": f"{shadow}/1.json", "size_bytes": 100}

    def find(
        self,
        staged: StagedShadow,
        scope: Scope,
        tables: Collection[str],
        dropped: Collection[str],
        *,
        is_begun: bool,
    ) -> StagedFiles | None:
        if staged.shadow in self.lake.tables and staged.shadow not in dropped:
            raise Conflict(f"{staged.shadow} is in the catalog by now")
        if staged.shadow in self.deleted:
            if is_begun:
                return None
            raise NotFound(f"{staged.metadata_file} is gone")
        return StagedFiles(groups=((staged.metadata_file,),), files=1, size_bytes=100, held={})

    def delete(self, staged: StagedShadow, groups: tuple[tuple[str, ...], ...]) -> None:
        self.lake.calls.append(f"delete files of {staged.shadow}")
        self.deleted.add(staged.shadow)


class FakeControlUpkeep:
    """`ports.control.ControlUpkeep` on the in-memory runs and fences."""

    def __init__(self, runs: FakeRuns, fences: FakeFences) -> None:
        self._runs, self._fences = runs, fences

    def runs(self) -> dict[str, dict[str, str]]:
        return {
            run_id: {
                "product": plan.product,
                "target": plan.resolved.target.table,
                "shadow": plan.shadow_table,
                "owner": plan.resolved.manifest.run.requested_by,
                "reason": plan.resolved.manifest.run.reason,
            }
            for run_id, plan in self._runs.plans.items()
        }

    def undeleted(self) -> tuple[str, ...]:
        found = []
        for run_id in sorted(self._runs.plans):
            events = self._runs.events(run_id)
            is_named = any(one.verb == "retire" and "staged" in one.detail for one in events)
            if is_named and not any(one.verb == "delete files" for one in events):
                found.append(run_id)
        return tuple(found)

    def fenced(self) -> tuple[str, ...]:
        return tuple(sorted(self._fences.epochs))

    def lift(self, run_ids: tuple[str, ...]) -> None:
        for run_id in run_ids:
            self._fences.epochs.pop(run_id, None)

    def litter(self, before: datetime) -> OrphanFiles:
        return OrphanFiles()

    def sweep(self, before: datetime) -> OrphanFiles:
        return OrphanFiles()
