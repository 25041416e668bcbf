"""Why rows changed: causes, and the rows that each explains. Of the sampled partitions only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lakehouse_backfill.domain.comparison.diff import DiffSample
from lakehouse_backfill.domain.serialization import Value

#: What can change a row; `unexplained`: no swapped factor accounts for the change.
Cause = Literal[
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "unexplained"
]


#: The class that counts a row: its cause, or `several` for more than one cause.
CauseClass = Cause | Literal["several"]


CAUSE_CLASSES: tuple[CauseClass, ...] = (
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "several",
    "unexplained",
)  # fmt: skip


#: What is known about how the old side was computed: by a run with a known plan, by the code that
#: the manifest names, from the inputs as they were when the partition was last written (the code is
#: unknown), or nothing.
AttributionBasis = Literal["run", "named", "assumed", "none"]


class Factor(Value):
    """One thing that can be swapped, or was observed: a cause, and the input it belongs to."""

    cause: Cause
    input: str | None = None

    def __str__(self) -> str:
        words = self.cause.replace("_", " ")
        return f"{words} of {self.input}" if self.input else words


def describe_factors(factors: Iterable[Mapping[str, Any]]) -> str:
    """Return the factors as text, from their JSON form."""
    return " + ".join(str(Factor.model_validate(each)) for each in factors)


@dataclass(frozen=True)
class ComparedState:
    """A state that rows are compared in; `swapped` are the new factors of a computed state."""

    kind: Literal["replaced", "published", "was_kept", "computed", "kept", "candidate"]
    swapped: frozenset[int] = frozenset()

    def words(self, factors: Sequence[Factor]) -> str:
        """Return the name of the state."""
        if self.kind != "computed":
            return self.kind
        names = [str(factors[place]) for place in sorted(self.swapped)]
        return f"old with new {', '.join(names)}" if names else "old"


class InputChange(Value):
    """How one input differs between the two pins, in the rows that the partition reads.

    Rows are None for reference data, which is swapped as a whole. `told_by` names the method that
    separates late rows from changed ones.
    """

    input: str
    table: str
    role: Literal["source", "reference"]
    old_snapshot_id: int
    new_snapshot_id: int
    late_rows: int | None = None
    upstream_rows: int | None = None
    deleted_rows: int | None = None
    told_by: str = ""


class ExplainedRows(Value):
    """The changed rows that share their causes; `columns`: rows in which each column differs."""

    cause: CauseClass
    factors: tuple[Factor, ...]
    rows: int
    columns: dict[str, int]
    samples: tuple[DiffSample, ...] = ()


class PartitionCauses(Value):
    """The changed rows of one sampled partition, by cause; the groups add up to `changed_rows`.

    `made_by` is the run whose result readers had; `live` names commits on the target since.
    `named_code` is the code that the manifest names where no run made the rows; `not_reproduced`
    are the changed rows whose old values it does not compute.
    """

    partition: str
    changed_rows: int
    basis: AttributionBasis
    made_by: str | None
    groups: tuple[ExplainedRows, ...]
    inputs: tuple[InputChange, ...] = ()
    live: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    named_code: str | None = None
    not_reproduced: int | None = None


class Attribution(Value):
    """The causes found on the sampled partitions; it covers no other partitions."""

    run_id: str
    product: str
    old: str
    new: str
    changed_rows: int
    changed_partitions: int
    sampled_rows: int
    partitions: tuple[PartitionCauses, ...]
    at: datetime
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each class over the sampled partitions, without empty classes."""
        counts: dict[str, int] = {}
        for name in CAUSE_CLASSES:
            rows = sum(g.rows for p in self.partitions for g in p.groups if g.cause == name)
            if rows:
                counts[name] = rows
        return counts

    @property
    def sampled(self) -> tuple[str, ...]:
        """The sampled partitions."""
        return tuple(part.partition for part in self.partitions)

    def data(self) -> dict[str, Any]:
        """Return the JSON form, with the counts and the sampled share of changed rows."""
        share = self.sampled_rows / self.changed_rows if self.changed_rows else 1.0
        return self.model_dump(mode="json") | {
            "counts": self.counts,
            "sampled": list(self.sampled),
            "sampled_share": round(share, 6),
        }
