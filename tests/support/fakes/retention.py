"""In-memory stand-ins of `lakehouse_backfill/ports/control.py`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.retention import StagedFiles, StagedShadow
from lakehouse_backfill.errors import Conflict, NotFound
from tests.support.fakes.lake import FakeLake


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
        scope: Scope | None,
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
