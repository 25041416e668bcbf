"""Computing partitions again with single inputs swapped, to see which of them changes a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse_backfill.domain.attribution import ComparedState, Factor, InputChange
from lakehouse_backfill.domain.carrying import TableState
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.plan import Plan, SourcePin


@dataclass(frozen=True)
class InputSwapRequest:
    """One partition: `replaced` against `candidate`, which `new` made.

    `old` made what readers had (None: its code is unknown, `new`'s is taken), from `old_pins`;
    `published` is what it left, before live commits (None: not known). `keys` gives the key of
    inputs for which one is declared. `samples` rows of each pattern are shown.
    """

    partition: str
    new: Plan
    candidate: TableState
    replaced: TableState
    old_pins: tuple[SourcePin, ...]
    old: Plan | None = None
    published: TableState | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: int = 3


@dataclass(frozen=True)
class RowPattern:
    """Changed rows that went through the states alike.

    `values` has one number per state: -1 where the row is absent, else the place of the first
    state with the same content.
    """

    values: tuple[int, ...]
    rows: int
    columns: dict[str, int]
    samples: tuple[DiffSample, ...]


@dataclass(frozen=True)
class InputSwapResult:
    """What was swapped, the states that were compared in their order, and what rows did."""

    factors: tuple[Factor, ...]
    states: tuple[ComparedState, ...]
    patterns: tuple[RowPattern, ...]
    inputs: tuple[InputChange, ...]
    notes: tuple[str, ...]


class ChangeAttributor(Protocol):
    """Running archived code on chosen pins; nothing is written anywhere."""

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        """Compute the states of a partition and compare them by key.

        A state that cannot be computed (old code on a new input) is left out, and a note says so.
        Raises what the code raises where it ran before: on its own inputs.
        """
        ...
