"""Words and references that manifests and contracts share."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from lakehouse_backfill.domain.value import Value, added_later

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
TableName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$", max_length=200
    ),
]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
PartitionValue = date | datetime | int | str | None


class SuiteRef(Value):
    """A Great Expectations suite to run on the output or on one input."""

    file: Text = Field(description="Suite file inside the project, under expectations/.")
    on: Name = Field("output", description="`output`, or the name of a source or reference.")
    parameters: dict[Name, str] = Field(
        default_factory=dict,
        description="Suite parameters filled from data: `name: input.column`, its distinct values.",
    )


class Threshold(Value):
    """A change of a measure that needs the owner's recorded review (Q6)."""

    measure: Name = Field(description="A measure of the contract.")
    max_change: float = Field(ge=0, description="Share of the old total, e.g. 0.2.")
    each_partition: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "Whether it holds for each partition by itself, not only for all of them together.",
    )
