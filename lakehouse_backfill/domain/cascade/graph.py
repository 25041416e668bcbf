"""Upstreams that a product declares, inputs that are candidates, and the nodes of a cascade."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakehouse_backfill.domain.serialization import Name, TableName, Text, Value, added_later

CASCADE_PREFIX = "cx-"
_RUN_PREFIX = "bf-"

MappingKind = Literal["same", "window", "aggregate", "all", "custom"]
NodeDecision = Literal["selected", "pulled in", "widened", "skipped"]


class Upstream(Value):
    """A product that this one is computed from, and which of its partitions reach which of ours."""

    product: TableName = Field(description="The product that is read.")
    mapping: MappingKind = Field(
        "same",
        description="`same`: the partition of the same label; `window`: also partitions around it; "
        "`aggregate`: a coarser partition, e.g. the month of a day; `all`: every partition; "
        "`custom`: what a function says.",
    )
    partitions_before: int = Field(
        0, ge=0, le=3660, description="With `window`: how many partitions before its own it reads."
    )
    partitions_after: int = Field(
        0, ge=0, le=3660, description="With `window`: how many partitions after its own it reads."
    )
    file: Text | None = Field(
        None, description="With `custom`: a Python file inside the project, e.g. jobs/x/mapping.py."
    )
    function: Name | None = Field(
        None,
        description="With `custom`: its function; it takes the label of an upstream partition and "
        "returns the labels of ours that read it.",
    )


class CascadeTemplate(Value):
    """How a product is restated when an upstream of it is."""

    manifest: Text = Field(
        description="A run manifest without partitions: these follow from what changes upstream."
    )


class CandidatePin(Value):
    """The input is what another run of the cascade stages, before readers see it.

    `table` and `snapshot_id` are the state of the product when it was planned; `product_table` is
    the table of its contract. The snapshot that is read is known when that run is validated.
    """

    run_id: str
    manifest_hash: str
    product: str
    product_table: str
    table: str
    snapshot_id: int


class CascadeNode(Value):
    """A product of a cascade: what is done with it, and why; in the order of the work.

    `reused` counts the partitions that the product holds and that are not computed again.
    """

    product: str
    decision: NodeDecision
    run_id: str | None = None
    upstreams: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    reused: int = 0
    publication: Literal["follow", "pinned"] = "follow"
    critical: bool = False
    because: tuple[str, ...] = ()


class CascadeMembership(Value):
    """The cascade that a run belongs to; `nodes` only in the plan of its first run."""

    cascade_id: str
    nodes: tuple[CascadeNode, ...] = added_later((), "The products of the cascade, in order.")

    @property
    def first_run_id(self) -> str:
        """The run of the product that the cascade begins with."""
        return first_run_of(self.cascade_id)


def cascade_id_of(first_run_id: str) -> str:
    """Return the id of the cascade that begins with a run."""
    return CASCADE_PREFIX + first_run_id.removeprefix(_RUN_PREFIX)


def first_run_of(cascade_id: str) -> str:
    """Return the run that a cascade begins with."""
    return _RUN_PREFIX + cascade_id.removeprefix(CASCADE_PREFIX)
