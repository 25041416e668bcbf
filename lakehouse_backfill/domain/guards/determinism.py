"""Kinds of non-determinism, what is found of them, and what a person allows."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from lakehouse_backfill.domain.serialization import Text, Value

#: `always` can't be allowed; `block` blocks unless a person allows it; `warn` is only shown.
Severity = Literal["always", "block", "warn"]


class KindSpec(NamedTuple):
    """A kind: what it means for the result, what to write instead, how it is treated."""

    problem: str
    instead: str
    severity: Severity = "block"


KINDS: dict[str, KindSpec] = {
    "wall_clock": KindSpec(
        "reads the clock: a later run computes something else",
        "use context.clock (`:clock` in SQL), or a time of the input",
    ),
    "random_value": KindSpec(
        "gives other values in each attempt, also with a seed: rows come in no fixed order",
        "derive the value from the input, e.g. with deterministic_id or xxhash64 of the key",
    ),
    "random_shuffle": KindSpec(
        "moves rows by a random key: a retried stage loses or duplicates rows (SPARK-38160)",
        "use a column of the input as the key, or xxhash64 of its key modulo a number",
        "always",
    ),
    "generated_id": KindSpec(
        "makes ids that depend on chance or on how rows lie in partitions",
        "use deterministic_id(columns) of lakehouse_backfill.columns",
    ),
    "file_name": KindSpec(
        "depends on data files, which compaction replaces",
        "use a column of the input",
    ),
    "unordered_collection": KindSpec(
        "collects values in the order in which rows arrive",
        "use ordered_list(value, order) of lakehouse_backfill.columns, or sort_array around it",
    ),
    "unordered_first": KindSpec(
        "takes a value of whichever row comes first",
        "use min_by or max_by with a unique order, or a window ordered by a unique key",
    ),
    "tied_rank": KindSpec(
        "ranks rows by an order in which two rows may be equal",
        "add columns to the order until it is unique, e.g. the key of the input",
        "warn",
    ),
    "unordered_limit": KindSpec(
        "takes some of the rows, in no fixed order",
        "sort by a unique key before, or select the rows by a condition",
    ),
    "float_sum": KindSpec(
        "adds floating-point numbers: the last digits depend on the order of rows",
        "cast to decimal before, e.g. with money(column) of lakehouse_backfill.columns",
    ),
    "unpinned_read": KindSpec(
        "reads data that the run doesn't pin",
        "declare it under sources or reference_data, and take it as an input",
    ),
    "environment": KindSpec(
        "depends on the machine, the user or the process",
        "put the value under transform.config, and read it from context.config",
    ),
    "file_read": KindSpec(
        "reads a file that the run doesn't pin",
        "load it into a table and declare that under reference_data, or package it with the code",
    ),
    "network": KindSpec(
        "asks another system, whose answer may change",
        "land the answers in a table, and declare it under sources or reference_data",
    ),
    "hash_order": KindSpec(
        "depends on Python's hash of texts, which differs between processes",
        "iterate over sorted(...); for a hash use hashlib or xxhash64",
    ),
    "time_zone": KindSpec(
        "depends on the time zone of the machine or session",
        "name the zone: datetime.fromtimestamp(x, timezone.utc), from_utc_timestamp(x, zone)",
    ),
    "global_state": KindSpec(
        "changes a variable of its module: the result depends on what ran before in the process",
        "pass values as arguments, and return the result",
    ),
}

KindName = Literal[
    "wall_clock", "random_value", "random_shuffle", "generated_id", "file_name",
    "unordered_collection", "unordered_first", "tied_rank", "unordered_limit", "float_sum",
    "unpinned_read", "environment", "file_read", "network", "hash_order", "time_zone",
    "global_state",
]  # fmt: skip


class Finding(Value):
    """One place of job code whose result may differ between two runs on the same input.

    `line` is 0 where the analysed plan shows it and the code doesn't say where it comes from.
    `allowed` is the reason of the person who allows it; empty: nobody does.
    """

    kind: KindName
    file: str
    line: int
    found: str
    severity: Severity = "block"
    allowed: str = ""

    @property
    def spec(self) -> KindSpec:
        """The kind's description."""
        return KINDS[self.kind]

    @property
    def is_blocking(self) -> bool:
        """Whether it stops the run."""
        return self.severity == "always" or (self.severity == "block" and not self.allowed)

    @property
    def place(self) -> str:
        """Where it is, as editors read it."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        text = f"{self.place}: {self.found}: {self.kind}: {self.spec.problem}"
        return f"{text}; allowed: {self.allowed}" if self.allowed else text


class AllowedNondeterminism(Value):
    """A finding that a person allows; it is shown with its reason wherever the plan is shown."""

    kind: KindName = Field(description="Kind of the finding; random_shuffle can't be allowed.")
    file: Text | None = Field(None, description="File of the finding; any file if absent.")
    line: int | None = Field(None, ge=1, description="Line of the finding; any line if absent.")
    reason: Text = Field(description="Why the result is right all the same.")

    @field_validator("kind")
    @classmethod
    def _require_allowable(cls, kind: KindName) -> KindName:
        if KINDS[kind].severity == "always":
            raise ValueError(f"{kind} can't be allowed: {KINDS[kind].problem}")
        return kind

    def covers(self, finding: Finding) -> bool:
        """Return whether it allows the finding."""
        return (
            self.kind == finding.kind
            and finding.severity != "always"
            and self.file in (None, finding.file)
            and self.line in (None, finding.line)
        )
