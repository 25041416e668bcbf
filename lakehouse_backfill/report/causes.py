"""Why rows differ: stacked bars by cause, one bar per sampled partition, with numbers beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.domain.attribution import CAUSE_CLASSES, describe_factors
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.report.changes import sample_row
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import (
    NO_VALUE,
    Markup,
    format_number,
    format_percent,
    html_tag,
    join,
    shorten,
)
from lakehouse_backfill.report.parts import (
    TableColumn,
    code_text,
    folded_details,
    page_section,
    page_table,
)

CAUSES_TITLE = "Why it changes"
#: What each class means, in the order of the bars; the letters stand on their grounds.
CAUSE_MEANINGS: dict[str, tuple[str, str]] = {
    "code": ("C", "the new code gives another row for the same inputs"),
    "late_input": ("L", "rows that came to a source later"),
    "upstream": ("U", "rows of a source that were changed since"),
    "reference": ("R", "reference data that moved"),
    "deletion": ("D", "deleted, in a source or in the table, or to be left out"),
    "live_write": ("W", "a live commit had changed what a run published"),
    "several": ("S", "more than one of these took part"),
    "unexplained": ("?", "nothing that was swapped gives this difference"),
}


def causes_section(dossier: Dossier) -> Markup:
    """Show the causes on the sampled partitions, or how to ask for them."""
    found = dossier.attribution
    if found is None:
        asked = commands.command_line("diff", dossier.run.run_id, "--attribute")
        return page_section(
            "causes", CAUSES_TITLE, html_tag("p", "Nobody asked yet: ", code_text(asked))
        )
    parts = found["partitions"]
    if not parts:
        return page_section(
            "causes", CAUSES_TITLE, html_tag("p", "No row differs, so there is no cause to find.")
        )
    lead = (
        f"{format_number(found['sampled_rows'])} of {format_number(found['changed_rows'])} changed rows "
        f"({format_percent(found['sampled_rows'], found['changed_rows'])}) were looked at: those of "
        f"{len(parts):,} of {found['changed_partitions']:,} changed partitions, the most changed "
        "first. Each was computed again with one input swapped at a time. Nothing is said of the "
        "others."
    )
    return page_section(
        "causes", CAUSES_TITLE, html_tag("p", lead), _cause_bars(parts), _cause_table(parts), _input_changes(parts),
        _cause_samples(parts), *_cause_notes(parts),
    )  # fmt: skip


def _cause_bars(parts: Sequence[dict[str, Any]]) -> Markup:
    used = {group["cause"] for part in parts for group in part["groups"]}
    shown = [name for name in CAUSE_CLASSES if name in used]
    body = [
        join(
            [
                html_tag("span", shorten(str(part["partition"]), 24), class_="name"),
                _cause_bar(part),
                html_tag("span", format_number(part["changed_rows"]), class_="n"),
            ]
        )
        for part in parts
    ]
    return html_tag(
        "figure",
        html_tag(
            "figcaption", "Changed rows of each partition by cause; at the right their number."
        ),
        html_tag("p", *(_cause_key(name) for name in shown), class_="legend small"),
        html_tag("div", *body, class_="map"),
        class_="causes",
    )


def _cause_key(name: str) -> Markup:
    letter, meaning = CAUSE_MEANINGS[name]
    sign = html_tag("span", letter, class_=f"cause {_cause_class(name)}", aria_hidden="true")
    return html_tag("span", sign, name.replace("_", " "), title=meaning)


def _cause_class(name: str) -> str:
    return f"k{list(CAUSE_MEANINGS).index(name) + 1}"


def _cause_bar(part: dict[str, Any]) -> Markup:
    """Draw the shares of one partition; one that is not zero is never drawn as nothing."""
    rows = dict.fromkeys(CAUSE_CLASSES, 0)
    for group in part["groups"]:
        rows[group["cause"]] += group["rows"]
    there = [(name, count) for name, count in rows.items() if count]
    whole = sum(rows.values())
    said = [
        f"{name.replace('_', ' ')} {count:,} ({format_percent(count, whole)})"
        for name, count in there
    ]
    shapes = [
        html_tag(
            "span",
            CAUSE_MEANINGS[name][0],
            style=f"flex:{count} 1 0",
            title=words,
            class_=_cause_class(name),
        )
        for (name, count), words in zip(there, said, strict=True)
    ]
    label = f"{part['partition']}: {', '.join(said)}"
    return html_tag("div", *shapes, class_="stack", role="img", aria_label=label)


def _cause_table(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        TableColumn("Partition", is_wide=True), TableColumn("Cause"), TableColumn("Rows", is_number=True),
        TableColumn("In", is_wide=True), TableColumn("Columns", is_wide=True),
        TableColumn("Made by", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            part["partition"],
            group["cause"].replace("_", " "),
            group["rows"],
            describe_factors(group["factors"]),
            ", ".join(f"{name} {count:,}" for name, count in group["columns"].items()) or NO_VALUE,
            part["made_by"] or ("not known" if part["basis"] == "none" else "assumed"),
        )
        for part in parts
        for group in part["groups"]
    ]
    return page_table(heads, rows)


def _input_changes(parts: Sequence[dict[str, Any]]) -> Markup:
    rows = [
        (part["partition"], code_text(one["input"]), one["late_rows"], one["upstream_rows"],
         one["deleted_rows"], one["told_by"])
        for part in parts for one in part["inputs"]
    ]  # fmt: skip
    if not rows:
        return Markup("")
    heads = (
        TableColumn("Partition", is_wide=True), TableColumn("Input"), TableColumn("Late", is_number=True),
        TableColumn("Changed", is_number=True), TableColumn("Deleted", is_number=True),
        TableColumn("Told by", is_wide=True),
    )  # fmt: skip
    return folded_details("What came to the inputs between the pins", page_table(heads, rows))


def _cause_samples(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        TableColumn("Cause", is_wide=True), TableColumn("Kind"), TableColumn("Key", is_wide=True),
        TableColumn("Old", is_wide=True), TableColumn("New", is_wide=True),
    )  # fmt: skip
    rows = [
        (describe_factors(group["factors"]), *sample_row(DiffSample.model_validate(sample)))
        for part in parts
        for group in part["groups"]
        for sample in group["samples"]
    ]
    return folded_details("Examples by cause", page_table(heads, rows)) if rows else Markup("")


def _cause_notes(parts: Sequence[dict[str, Any]]) -> list[Markup]:
    said = [(part["partition"], note) for part in parts for note in part["notes"]]
    said += [
        (part["partition"], f"changed on the table by {'; '.join(part['live'])}")
        for part in parts
        if part["live"]
    ]
    return [html_tag("p", f"{label}: {note}", class_="small soft") for label, note in said]
