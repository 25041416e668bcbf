"""Why rows differ: stacked bars by cause, one bar per sampled partition, with numbers beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.domain.attribution import CLASSES, spoken
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.report.changes import sample_row
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import NOTHING, Markup, join, number, share, shorten, tag
from lakehouse_backfill.report.parts import Column, code, folded, section, table

TITLE = "Why it changes"
#: What each class means, in the order of the bars; the letters stand on their grounds.
MEANING: dict[str, tuple[str, str]] = {
    "code": ("C", "the new code gives another row for the same inputs"),
    "late_input": ("L", "rows that came to a source later"),
    "upstream": ("U", "rows of a source that were changed since"),
    "reference": ("R", "reference data that moved"),
    "deletion": ("D", "deleted, in a source or in the table, or to be left out"),
    "live_write": ("W", "a live commit had changed what a run published"),
    "several": ("S", "more than one of these took part"),
    "unexplained": ("?", "nothing that was swapped gives this difference"),
}


def why(dossier: Dossier) -> Markup:
    """Show the causes on the sampled partitions, or how to ask for them."""
    found = dossier.attribution
    if found is None:
        asked = commands.typed("diff", dossier.run.run_id, "--attribute")
        return section("causes", TITLE, tag("p", "Nobody asked yet: ", code(asked)))
    parts = found["partitions"]
    if not parts:
        return section("causes", TITLE, tag("p", "No row differs, so there is no cause to find."))
    lead = (
        f"{number(found['sampled_rows'])} of {number(found['changed_rows'])} changed rows "
        f"({share(found['sampled_rows'], found['changed_rows'])}) were looked at: those of "
        f"{len(parts):,} of {found['changed_partitions']:,} changed partitions, the most changed "
        "first. Each was computed again with one input swapped at a time. Nothing is said of the "
        "others."
    )
    return section(
        "causes", TITLE, tag("p", lead), _bars(parts), _numbers(parts), _inputs(parts),
        _samples(parts), *_notes(parts),
    )  # fmt: skip


def _bars(parts: Sequence[dict[str, Any]]) -> Markup:
    used = {group["cause"] for part in parts for group in part["groups"]}
    shown = [name for name in CLASSES if name in used]
    body = [
        join(
            [
                tag("span", shorten(str(part["partition"]), 24), class_="name"),
                _bar(part),
                tag("span", number(part["changed_rows"]), class_="n"),
            ]
        )
        for part in parts
    ]
    return tag(
        "figure",
        tag("figcaption", "Changed rows of each partition by cause; at the right their number."),
        tag("p", *(_key(name) for name in shown), class_="legend small"),
        tag("div", *body, class_="map"),
        class_="causes",
    )


def _key(name: str) -> Markup:
    letter, meaning = MEANING[name]
    sign = tag("span", letter, class_=f"cause {_ground(name)}", aria_hidden="true")
    return tag("span", sign, name.replace("_", " "), title=meaning)


def _ground(name: str) -> str:
    return f"k{list(MEANING).index(name) + 1}"


def _bar(part: dict[str, Any]) -> Markup:
    """Draw the shares of one partition; one that is not zero is never drawn as nothing."""
    rows = dict.fromkeys(CLASSES, 0)
    for group in part["groups"]:
        rows[group["cause"]] += group["rows"]
    there = [(name, count) for name, count in rows.items() if count]
    whole = sum(rows.values())
    said = [f"{name.replace('_', ' ')} {count:,} ({share(count, whole)})" for name, count in there]
    shapes = [
        tag("span", MEANING[name][0], style=f"flex:{count} 1 0", title=words, class_=_ground(name))
        for (name, count), words in zip(there, said, strict=True)
    ]
    label = f"{part['partition']}: {', '.join(said)}"
    return tag("div", *shapes, class_="stack", role="img", aria_label=label)


def _numbers(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        Column("Partition", is_wide=True), Column("Cause"), Column("Rows", is_number=True),
        Column("In", is_wide=True), Column("Columns", is_wide=True),
        Column("Made by", is_wide=True),
    )  # fmt: skip
    rows = [
        (
            part["partition"],
            group["cause"].replace("_", " "),
            group["rows"],
            spoken(group["factors"]),
            ", ".join(f"{name} {count:,}" for name, count in group["columns"].items()) or NOTHING,
            part["made_by"] or ("not known" if part["basis"] == "none" else "assumed"),
        )
        for part in parts
        for group in part["groups"]
    ]
    return table(heads, rows)


def _inputs(parts: Sequence[dict[str, Any]]) -> Markup:
    rows = [
        (part["partition"], code(one["input"]), one["late_rows"], one["upstream_rows"],
         one["deleted_rows"], one["told_by"])
        for part in parts for one in part["inputs"]
    ]  # fmt: skip
    if not rows:
        return Markup("")
    heads = (
        Column("Partition", is_wide=True), Column("Input"), Column("Late", is_number=True),
        Column("Changed", is_number=True), Column("Deleted", is_number=True),
        Column("Told by", is_wide=True),
    )  # fmt: skip
    return folded("What came to the inputs between the pins", table(heads, rows))


def _samples(parts: Sequence[dict[str, Any]]) -> Markup:
    heads = (
        Column("Cause", is_wide=True), Column("Kind"), Column("Key", is_wide=True),
        Column("Old", is_wide=True), Column("New", is_wide=True),
    )  # fmt: skip
    rows = [
        (spoken(group["factors"]), *sample_row(DiffSample.model_validate(sample)))
        for part in parts
        for group in part["groups"]
        for sample in group["samples"]
    ]
    return folded("Examples by cause", table(heads, rows)) if rows else Markup("")


def _notes(parts: Sequence[dict[str, Any]]) -> list[Markup]:
    said = [(part["partition"], note) for part in parts for note in part["notes"]]
    said += [
        (part["partition"], f"changed on the table by {'; '.join(part['live'])}")
        for part in parts
        if part["live"]
    ]
    return [tag("p", f"{label}: {note}", class_="small soft") for label, note in said]
