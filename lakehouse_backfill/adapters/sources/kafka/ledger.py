"""What was landed of a topic: offsets, in the state that each commit of the raw table carries."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.landing.offsets import OffsetPosition
from lakehouse_backfill.domain.sources.landings import LandingState
from lakehouse_backfill.ports.sources import RawTables


@dataclass(frozen=True)
class OffsetLedger:
    """The landed offsets of one raw table; they are committed with the rows."""

    raw_tables: RawTables
    table: str

    def newest(self) -> tuple[LandingState | None, OffsetPosition | None]:
        """Return the state of the newest landing and its position."""
        state = self.raw_tables.state(self.table)
        return state, OffsetPosition.read(state.position) if state else None

    def begun(self) -> OffsetPosition | None:
        """Return the position of a landing that was cut off; None where there is none."""
        state, position = self.newest()
        if state is None or state.is_complete or position is None:
            return None
        return position if position.landing_id == state.landing_id else None
