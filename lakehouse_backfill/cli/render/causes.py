"""diff --attribute: why rows differ, on the partitions that were looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.cli.render.page import TextPage, format_cell

Data = Mapping[str, Any]
#: Samples of one group that are drawn; JSON and evidence hold all.
_MAX_CAUSE_SAMPLES = 2


def render_causes(page: TextPage, data: Data) -> None:
    """Draw the classes over all sampled partitions, then each partition with its causes."""
    parts = data["partitions"]
    page.line()
    if not parts:
        page.line("nothing differs: there is nothing to attribute", "bold")
        return
    page.line(
        f"causes, on {len(parts):,} of {data['changed_partitions']:,} changed partitions with "
        f"{data['sampled_rows']:,} of {data['changed_rows']:,} changed rows "
        f"({data['sampled_share']:.0%}); nothing is said of the others",
        "bold",
    )
    page.facts((name.replace("_", " "), count) for name, count in data["counts"].items())
    page.table(
        "by partition",
        ("partition", "cause", "rows", "in", "columns"),
        [_cause_row(part, group) for part in parts for group in part["groups"]],
    )
    page.table(
        "what came to the inputs",
        ("partition", "input", "late", "upstream", "deleted", "told by"),
        [
            (part["partition"], each["input"], each["late_rows"], each["upstream_rows"],
             each["deleted_rows"], each["told_by"])
            for part in parts for each in part["inputs"]
        ],
    )  # fmt: skip
    _cause_sample_table(page, data)
    for part in parts:
        if part["live"]:
            page.line(f"{part['partition']} was also changed by {'; '.join(part['live'])}")
        for note in part["notes"]:
            page.line(f"{part['partition']}: {note}")


def _cause_row(part: Data, group: Data) -> tuple[Any, ...]:
    columns = ", ".join(f"{name} {count:,}" for name, count in group["columns"].items())
    cause = group["cause"].replace("_", " ")
    return (part["partition"], cause, group["rows"], _factors_text(group), columns)


def _cause_sample_table(page: TextPage, data: Data) -> None:
    rows = [
        (
            _factors_text(group),
            sample["kind"],
            format_cell(sample["key"]),
            sample["old"],
            sample["new"],
        )
        for part in data["partitions"]
        for group in part["groups"]
        for sample in group["samples"][:_MAX_CAUSE_SAMPLES]
    ]
    page.table("samples by cause", ("cause", "", "key", "old", "new"), rows)


def _factors_text(group: Data) -> str:
    # The model is loaded by who draws causes, not by every command.
    from lakehouse_backfill.domain.attribution import describe_factors

    return describe_factors(group["factors"])
