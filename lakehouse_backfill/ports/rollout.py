"""What readers do before a switch, and the events that they get instead of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lakehouse_backfill.domain.publication import CommitResult
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
    QueryComparison,
    ReaderQuery,
    TableState,
)
from lakehouse_backfill.fault_points import side_effect


class QueryRunner(Protocol):
    """Running a reader's own query."""

    def compare(self, query: ReaderQuery, old: TableState, new: TableState) -> QueryComparison:
        """Run the query on both states and compare the results as multisets of rows.

        The query reaches nothing but the relation `product`: no file, no network, no setting.
        Raises ConfigError when it is no single query, or cannot be run.
        """
        ...


class Corrections(Protocol):
    """A table of correction events."""

    @side_effect
    def write(self, request: CorrectionEventsRequest, rows: Iterable[DifferingRow]) -> CommitResult:
        """Write the events of a publication by one append; a token that has landed writes none.

        The table is made when it does not exist, and `rows` are read once, if at all. Raises
        Unsupported (its columns are others), TooBusy, OutcomeUnknown.
        """
        ...

    @side_effect
    def compensate(self, request: CompensationRequest) -> CommitResult:
        """Write the reverse of what publications wrote, newest first, by one append; once."""
        ...

    def find(self, table: str, token: str) -> CommitResult | None:
        """Look in the table for the append of `token`; None when there is none, or no table."""
        ...
