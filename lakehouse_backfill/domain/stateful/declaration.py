"""What a stateful job declares: its state, where it starts, its timers, its watermark.

Also the state that a chunk leaves, as the plan and the ledger name it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.serialization import ColumnName, Name, Value

WatermarkPolicy = Literal[
    "sort_by_event_time_in_key",
    "by_time_partition",
    "bounded_disorder",
    "batch_equivalent",
    "corrections_for_late_facts",
]
LatePolicy = Literal["include", "drop", "fail", "correct"]

#: What a watermark policy lets become of a late row, and why no other policy.
LATE_POLICIES: Mapping[WatermarkPolicy, tuple[tuple[LatePolicy, ...], str]] = {
    "sort_by_event_time_in_key": (("include",), "rows are put in order, so none is late"),
    "by_time_partition": (("drop", "fail"), "an earlier partition is closed when a row is late"),
    "bounded_disorder": (("drop", "fail"), "the state has passed the time of a late row"),
    "batch_equivalent": (("include",), "all rows of the input count, whenever they arrived"),
    "corrections_for_late_facts": (("correct",), "late rows are marked, and become corrections"),
}
#: Policies by which a row is late by the order in which rows arrived.
_BY_ARRIVAL: tuple[WatermarkPolicy, ...] = ("bounded_disorder", "corrections_for_late_facts")

#: Marks late rows for the transform, where they become corrections.
LATE_COLUMN = "lhb_is_late"


class StateDeclaration(Value):
    """What the state is made of."""

    derived_from_input: bool = Field(
        description="Whether pinned input alone makes the state; only then it can be made again."
    )
    key: tuple[ColumnName, ...] = Field(
        min_length=1, description="Columns of the watermark's source, and of the state: its key."
    )


class Watermark(Value):
    """How rows that are out of order, or late, are treated, before the job gets them."""

    policy: WatermarkPolicy = Field(description="What is done about the order of rows.")
    source: Name | None = Field(None, description="The source; may be left out where one is read.")
    event_time: ColumnName | None = Field(
        None, description="Date or timestamp of the event; every policy but batch_equivalent."
    )
    arrival: ColumnName | None = Field(
        None, description="Column by which rows arrived in order, for policies of a disorder."
    )
    disorder_s: int | None = Field(
        None, ge=0, description="Seconds that a row may be behind the latest event that arrived."
    )


class StateKeeping(Value):
    """When the state is kept."""

    every_partitions: int = Field(
        1, ge=1, le=10_000, description="Partitions of a chunk; a state is kept after each chunk."
    )


class Stateful(Value):
    """The declaration of a job that carries a state from one partition to the next."""

    state: StateDeclaration = Field(description="What the state is made of.")
    start_boundary: Literal["empty", "warm_up", "restored"] = Field(
        description="The state that the first chunk starts from: none; none, with rows of the "
        "warm-up before it; or the last good state that an earlier run kept, and without one the "
        "warm-up, if there is one."
    )
    warm_up_days: int = Field(
        0,
        ge=0,
        le=3660,
        description="Days of input that make the whole state; 0: it reaches back without an end.",
    )
    timers: Literal["event_time", "processing_time"] = Field(
        description="Which clock the job's timers follow; plan refuses processing_time."
    )
    late: LatePolicy = Field(description="What becomes of late rows.")
    watermark: Watermark = Field(description="How rows out of order are treated.")
    snapshot: StateKeeping = Field(
        default_factory=StateKeeping, description="When the state is kept."
    )


class StateSnapshot(Value):
    """A kept state: its table, the checksum of its rows, and the last partition in it."""

    table: str
    snapshot_id: int
    checksum: str
    key: str
    boundary: str

    @property
    def text(self) -> str:
        """One text for the ledger, which `parse` reads."""
        return "|".join(
            (f"{self.table}@{self.snapshot_id}", self.checksum, self.key, self.boundary)
        )

    @classmethod
    def parse(cls, text: str) -> StateSnapshot:
        """Read what `text` gives; raises ValueError."""
        place, checksum, key, boundary = text.split("|", 3)
        table, _, snapshot_id = place.rpartition("@")
        return cls(
            table=table,
            snapshot_id=int(snapshot_id),
            checksum=checksum,
            key=key,
            boundary=boundary,
        )


class StateStart(Value):
    """The state that a run starts from, and why; without a `kept` one it starts with none.

    With `warm_up` the first chunk reads the warm-up of its sources. `run_id` kept the state.
    `cold_since` is the first partition whose rows are in the state: a run began there without a
    state and without a warm-up. It is empty where the state is whole.
    """

    kept: StateSnapshot | None = None
    run_id: str = ""
    warm_up: bool = False
    cold_since: str = ""
    why: str


class DeclarationFault(NamedTuple):
    """A field that is wrong, what is wrong with it, and what to write."""

    field: str
    problem: str
    fix: str


def declaration_faults(
    declared: Stateful, sources: Mapping[str, int], parallel: int
) -> Iterator[DeclarationFault]:
    """Yield what is wrong with a declaration; `sources` are their days of warm-up, by name."""
    if not declared.state.derived_from_input:
        yield DeclarationFault(
            "stateful.state.derived_from_input",
            "false: a state that pinned input does not make cannot be made again",
            "pin what it is made of as a source or reference data, and write true",
        )
    if declared.timers == "processing_time":
        yield DeclarationFault(
            "stateful.timers",
            "processing_time: a timer of the clock on the wall fires elsewhere in each run, so two "
            "runs give two results",
            "let timers of the job follow its rows' event time, and write event_time",
        )
    if parallel > 1:
        yield DeclarationFault(
            "limits.parallel",
            f"{parallel}: a chunk starts from the state of the chunk before it",
            "write 1",
        )
    yield from _warm_up_faults(declared, sources)
    yield from _watermark_faults(declared, sources)


def _warm_up_faults(declared: Stateful, sources: Mapping[str, int]) -> Iterator[DeclarationFault]:
    if declared.start_boundary == "warm_up" and not declared.warm_up_days:
        yield DeclarationFault(
            "stateful.warm_up_days",
            "0: no warm-up makes a state that reaches back without an end",
            "write how many days make the whole state, or start_boundary: restored or empty",
        )
    for name, days in sources.items():
        if days == declared.warm_up_days:
            continue
        yield DeclarationFault(
            f"sources.{name}.warm_up_days",
            f"{days}, and stateful.warm_up_days is {declared.warm_up_days}: rows of the state "
            "would be missing, or count twice",
            f"write {declared.warm_up_days}",
        )


def _watermark_faults(declared: Stateful, sources: Collection[str]) -> Iterator[DeclarationFault]:
    mark = declared.watermark
    allowed, because = LATE_POLICIES[mark.policy]
    if declared.late not in allowed:
        yield DeclarationFault(
            "stateful.late",
            f"{declared.late} does not go with {mark.policy}: {because}",
            f"write {' or '.join(allowed)}",
        )
    if mark.source is None and len(sources) > 1:
        fix = f"name one of {', '.join(sources)}"
        yield DeclarationFault("stateful.watermark.source", "missing: several are read", fix)
    elif mark.source is not None and mark.source not in sources:
        fix = f"name one of {', '.join(sources)}"
        yield DeclarationFault("stateful.watermark.source", f"{mark.source}: no source", fix)
    needed = {
        "event_time": mark.policy != "batch_equivalent",
        "arrival": mark.policy in _BY_ARRIVAL,
        "disorder_s": mark.policy in _BY_ARRIVAL,
    }
    for name, is_needed in needed.items():
        field = f"stateful.watermark.{name}"
        if is_needed and getattr(mark, name) is None:
            yield DeclarationFault(field, f"missing: {mark.policy} needs it", "write it")
        elif not is_needed and getattr(mark, name) is not None:
            yield DeclarationFault(field, f"given: {mark.policy} has no use for it", "remove it")
    every = declared.snapshot.every_partitions
    if mark.policy == "by_time_partition" and every != 1:
        yield DeclarationFault(
            "stateful.snapshot.every_partitions",
            f"{every}: by_time_partition computes one partition after the other",
            "write 1",
        )


def watermark_source(declared: Stateful, sources: Collection[str]) -> str:
    """Return the source whose rows the watermark is about."""
    return declared.watermark.source or next(iter(sources))
