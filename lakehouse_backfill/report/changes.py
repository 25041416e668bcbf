"""What differs between old and new: by partition, by column, by example."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import ColumnDiff, Diff, DiffSample, Validation
from lakehouse_backfill.report import heat, spreads
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import NOTHING, Markup, escape, join, number, shorten, tag
from lakehouse_backfill.report.parts import Column, code, folded, section, table

#: Fields of one example, and the length of each, on the page; the archive holds them whole.
MAX_FIELDS, MAX_FIELD = 12, 120
_ABSENT = tag("p", "The run was not validated yet, so nothing was compared.")


def where(dossier: Dossier) -> Markup:
    """Show which partitions differ, in which columns, and how much."""
    if dossier.validation is None:
        return section("where", "Where it changes", _ABSENT)
    diff = dossier.validation.diff
    rows = [row for row in diff.partitions if row.partition is not None]
    if not rows:
        absent = tag("p", "Rows were not compared by partition: see the columns below.")
        numbers = _numbers("All rows in numbers", dossier.validation)
        return section("where", "Where it changes", absent, numbers)
    touched = sum(1 for row in rows if row.added or row.removed or row.changed)
    scope = dossier.plan.resolved.scope
    found = {*scope.partitions, *(str(row.partition) for row in rows)}
    labels = sorted(found, key=partitions.sort_key(scope.field))
    lead = f"{touched:,} of {len(labels):,} partitions differ."
    parts = (
        heat.grid(diff, labels),
        _numbers(_counted(len(rows), len(labels)), dossier.validation),
    )
    return section("where", "Where it changes", tag("p", lead), *parts)


def _counted(listed: int, total: int) -> str:
    """Say how many partitions the numbers are of: the diff may have none of one without a row."""
    if listed < total:
        return f"{listed:,} of {total:,} partitions in numbers; the others have no rows"
    return f"All {total:,} partitions in numbers" if total > 1 else "The partition in numbers"


def _numbers(title: str, validation: Validation) -> Markup:
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    columns = [Column("Partition", is_wide=True)]
    columns += [Column(name.replace("_", " ").capitalize(), is_number=True) for name in names]
    equal = {row.partition: "equal" if row.equal else "differ" for row in validation.balances}
    columns.append(Column("Checksums"))
    rows = [
        (
            row.partition or "all",
            *(getattr(row, name) for name in names),
            equal.get(row.partition or "", NOTHING),
        )
        for row in validation.diff.partitions
    ]
    return folded(title, table(columns, rows))


def columns(dossier: Dossier) -> Markup:
    """Show how each column differs, with its distribution on both sides."""
    if dossier.validation is None:
        return section("columns", "Columns", _ABSENT)
    diff = dossier.validation.diff
    heads = (
        Column("Column", is_wide=True),
        Column("Changed rows", is_number=True),
        Column("Shift", is_number=True),
        Column("Distribution", is_wide=True),
        Column("Old", is_wide=True),
        Column("New", is_wide=True),
    )
    ordered = sorted(diff.columns, key=lambda column: -column.changed)
    lead = (
        "Changed rows have the same key on both sides. Shift: for numbers the distance of the "
        "means in standard deviations of the old side; for categories the population stability "
        "index. Distribution: for numbers the greatest distance of the cumulative shares (KS), for "
        "categories the index again (PSI), with what it must exceed to count."
    )
    key = ", ".join(diff.key) or "none: rows were compared as wholes"
    return section(
        "columns",
        "Columns",
        tag("p", lead),
        tag("p", "Key: ", code(key), f". Compared by the {diff.engine} engine{_how(diff)}."),
        table(heads, [_column(column) for column in ordered]),
        spreads.pictures(diff.columns),
        _added(diff),
    )


def _how(diff: Diff) -> str:
    return f" ({diff.how})" if diff.how else ""


def _added(diff: Diff) -> Markup:
    if not diff.added_columns:
        return Markup("")
    heads = (Column("New column", is_wide=True), Column("Rows with a value", is_number=True))
    lead = "New columns take no part in the comparison of rows."
    rows = [(code(column.name), column.rows) for column in diff.added_columns]
    return join([tag("p", lead), table(heads, rows)])


def _column(column: ColumnDiff) -> tuple[Any, ...]:
    return (
        code(column.name), column.changed, column.shift, _distribution(column),
        _spread(column.old), _spread(column.new),
    )  # fmt: skip


def _distribution(column: ColumnDiff) -> Markup | str:
    found = column.distribution
    if found is None:
        return NOTHING
    text = f"{found.test.upper()} {found.value:.3g}, limit {found.limit:.2g}"
    if found.is_unjudged:
        text = f"not judged, one range holds nearly all values: {text}"
    return tag("span", f"! shifted: {text}" if found.is_shifted else text, class_="small")


def _spread(side: dict[str, Any]) -> Markup:
    return tag(
        "span", ", ".join(_item(name, value) for name, value in side.items()), class_="small"
    )


def _item(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{name} {', '.join(str(item) for item in value)}"
    if isinstance(value, dict):
        return f"{name} {', '.join(f'{key} {number(inner)}' for key, inner in value.items())}"
    return f"{name} {number(value)}"


def samples(dossier: Dossier) -> Markup:
    """Show single rows that differ."""
    if dossier.validation is None:
        return section("samples", "Examples", _ABSENT)
    found = dossier.validation.diff.samples
    if not found:
        return section("samples", "Examples", tag("p", "No row differs."))
    heads = (
        Column("Kind"), Column("Key", is_wide=True), Column("Old", is_wide=True),
        Column("New", is_wide=True),
    )  # fmt: skip
    return section("samples", "Examples", table(heads, [sample_row(sample) for sample in found]))


def sample_row(sample: DiffSample) -> tuple[Any, ...]:
    """Give kind, key, old and new of an example, ready for a table."""
    return (sample.kind, _values(sample.key), _values(sample.old), _values(sample.new))


def _values(values: dict[str, Any] | None) -> Markup:
    if not values:
        return escape(None)
    shown: list[Any] = [_pair(name, value) for name, value in list(values.items())[:MAX_FIELDS]]
    if len(values) > MAX_FIELDS:
        shown.append(f"and {len(values) - MAX_FIELDS} more")
    return tag("span", *(tag("span", pair, class_="pair") for pair in shown), class_="small")


def _pair(name: str, value: Any) -> Markup:
    text = "null" if value is None else str(value)
    if len(text) > MAX_FIELD:
        text = f"{shorten(text, MAX_FIELD)} ({len(text):,} characters)"
    return join([tag("span", shorten(name, 80), class_="soft"), " ", text])
