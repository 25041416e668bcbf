"""Why rows of a candidate differ from what they replace: by cause, on sampled partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.value import Value

#: What can change a row; `unexplained` is what nothing that was swapped accounts for.
Cause = Literal[
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "unexplained"
]
#: Where a row is counted: under its cause, or where it has more than one.
CauseClass = Cause | Literal["several"]
CAUSE_CLASSES: tuple[CauseClass, ...] = (
    "code", "late_input", "upstream", "reference", "deletion", "live_write", "several",
    "unexplained",
)  # fmt: skip

#: What the old side was made of: by a run whose plan is known, by inputs as they were when the
#: partition was last written (the code is unknown), or nobody can say.
AttributionBasis = Literal["run", "assumed", "none"]


class Factor(Value):
    """One thing that can be swapped, or was seen: a cause, and the input that it lies in."""

    cause: Cause
    input: str | None = None

    def __str__(self) -> str:
        words = self.cause.replace("_", " ")
        return f"{words} of {self.input}" if self.input else words


def describe_factors(factors: Iterable[Mapping[str, Any]]) -> str:
    """Say which factors took part, given in their JSON form."""
    return " + ".join(str(Factor.model_validate(each)) for each in factors)


@dataclass(frozen=True)
class ComparedState:
    """What a row is looked up in; `swapped` are the factors that are new in a computed one."""

    kind: Literal["replaced", "published", "was_kept", "computed", "kept", "candidate"]
    swapped: frozenset[int] = frozenset()

    def words(self, factors: Sequence[Factor]) -> str:
        """Say which state it is."""
        if self.kind != "computed":
            return self.kind
        names = [str(factors[place]) for place in sorted(self.swapped)]
        return f"old with new {', '.join(names)}" if names else "old"


class InputChange(Value):
    """How one input differs between the two pins, in what the partition reads of it.

    Rows are None for reference data, which is swapped as a whole. `told_by` says how late rows
    were told from changed ones.
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
    """

    partition: str
    changed_rows: int
    basis: AttributionBasis
    made_by: str | None
    groups: tuple[ExplainedRows, ...]
    inputs: tuple[InputChange, ...] = ()
    live: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Attribution(Value):
    """What was found on the sampled partitions; nothing is said of the others."""

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
        """Rows of each class over the sampled partitions, those with rows only."""
        found: dict[str, int] = {}
        for name in CAUSE_CLASSES:
            rows = sum(g.rows for p in self.partitions for g in p.groups if g.cause == name)
            if rows:
                found[name] = rows
        return found

    @property
    def sampled(self) -> tuple[str, ...]:
        """Name the sampled partitions."""
        return tuple(part.partition for part in self.partitions)

    def data(self) -> dict[str, Any]:
        """Give the JSON form, with the counts and the share of changed rows that was looked at."""
        share = self.sampled_rows / self.changed_rows if self.changed_rows else 1.0
        return self.model_dump(mode="json") | {
            "counts": self.counts,
            "sampled": list(self.sampled),
            "sampled_share": round(share, 6),
        }
