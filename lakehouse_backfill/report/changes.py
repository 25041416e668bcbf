"""What differs between old and new: by partition, by column, by example."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import ColumnDiff, Diff, DiffSample, ValidationResult
from lakehouse_backfill.report import heat, spreads
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import (
    NO_VALUE,
    Markup,
    escape,
    format_number,
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

#: Fields of one example, and the length of each, on the page; the archive holds them whole.
MAX_FIELDS, MAX_FIELD_LENGTH = 12, 120
_NOT_VALIDATED = html_tag("p", "The run was not validated yet, so nothing was compared.")


def where_section(dossier: Dossier) -> Markup:
    """Show which partitions differ, in which columns, and how much."""
    if dossier.validation is None:
        return page_section("where", "Where it changes", _NOT_VALIDATED)
    diff = dossier.validation.diff
    rows = [row for row in diff.partitions if row.partition is not None]
    if not rows:
        absent = html_tag("p", "Rows were not compared by partition: see the columns below.")
        numbers = _partition_table("All rows in numbers", dossier.validation)
        return page_section("where", "Where it changes", absent, numbers)
    touched = sum(1 for row in rows if row.added or row.removed or row.changed)
    scope = dossier.plan.resolved.scope
    found = {*scope.partitions, *(str(row.partition) for row in rows)}
    labels = sorted(found, key=partitions.label_sort_key(scope.field))
    lead = f"{touched:,} of {len(labels):,} partitions differ."
    parts = (
        heat.draw_heat_map(diff, labels),
        _partition_table(_numbers_title(len(rows), len(labels)), dossier.validation),
    )
    return page_section("where", "Where it changes", html_tag("p", lead), *parts)


def _numbers_title(listed: int, total: int) -> str:
    """Say how many partitions the numbers are of: the diff may have none of one without a row."""
    if listed < total:
        return f"{listed:,} of {total:,} partitions in numbers; the others have no rows"
    return f"All {total:,} partitions in numbers" if total > 1 else "The partition in numbers"


def _partition_table(title: str, validation: ValidationResult) -> Markup:
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    columns = [TableColumn("Partition", is_wide=True)]
    columns += [TableColumn(name.replace("_", " ").capitalize(), is_number=True) for name in names]
    equal = {row.partition: "equal" if row.equal else "differ" for row in validation.balances}
    columns.append(TableColumn("Checksums"))
    rows = [
        (
            row.partition or "all",
            *(getattr(row, name) for name in names),
            equal.get(row.partition or "", NO_VALUE),
        )
        for row in validation.diff.partitions
    ]
    return folded_details(title, page_table(columns, rows))


def columns_section(dossier: Dossier) -> Markup:
    """Show how each column differs, with its distribution on both sides."""
    if dossier.validation is None:
        return page_section("columns", "Columns", _NOT_VALIDATED)
    diff = dossier.validation.diff
    heads = (
        TableColumn("Column", is_wide=True),
        TableColumn("Changed rows", is_number=True),
        TableColumn("Shift", is_number=True),
        TableColumn("Distribution", is_wide=True),
        TableColumn("Old", is_wide=True),
        TableColumn("New", is_wide=True),
    )
    ordered = sorted(diff.columns, key=lambda column: -column.changed)
    lead = (
        "Changed rows have the same key on both sides. Shift: for numbers the distance of the "
        "means in standard deviations of the old side; for categories the population stability "
        "index. Distribution: for numbers the greatest distance of the cumulative shares (KS), for "
        "categories the index again (PSI), with what it must exceed to count."
    )
    key = ", ".join(diff.key) or "none: rows were compared as wholes"
    return page_section(
        "columns",
        "Columns",
        html_tag("p", lead),
        html_tag(
            "p",
            "Key: ",
            code_text(key),
            f". Compared by the {diff.engine} engine{_engine_note(diff)}.",
        ),
        page_table(heads, [_column_row(column) for column in ordered]),
        spreads.distribution_figures(diff.columns),
        _added_columns_table(diff),
    )


def _engine_note(diff: Diff) -> str:
    return f" ({diff.how})" if diff.how else ""


def _added_columns_table(diff: Diff) -> Markup:
    if not diff.added_columns:
        return Markup("")
    heads = (
        TableColumn("New column", is_wide=True),
        TableColumn("Rows with a value", is_number=True),
    )
    lead = "New columns take no part in the comparison of rows."
    rows = [(code_text(column.name), column.rows) for column in diff.added_columns]
    return join([html_tag("p", lead), page_table(heads, rows)])


def _column_row(column: ColumnDiff) -> tuple[Any, ...]:
    return (
        code_text(column.name), column.changed, column.shift, _distribution_text(column),
        _description_text(column.old), _description_text(column.new),
    )  # fmt: skip


def _distribution_text(column: ColumnDiff) -> Markup | str:
    found = column.distribution
    if found is None:
        return NO_VALUE
    text = f"{found.test.upper()} {found.value:.3g}, limit {found.limit:.2g}"
    if found.is_unjudged:
        text = f"not judged, one range holds nearly all values: {text}"
    return html_tag("span", f"! shifted: {text}" if found.is_shifted else text, class_="small")


def _description_text(side: dict[str, Any]) -> Markup:
    return html_tag(
        "span",
        ", ".join(_description_item(name, value) for name, value in side.items()),
        class_="small",
    )


def _description_item(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{name} {', '.join(str(item) for item in value)}"
    if isinstance(value, dict):
        return (
            f"{name} {', '.join(f'{key} {format_number(inner)}' for key, inner in value.items())}"
        )
    return f"{name} {format_number(value)}"


def samples_section(dossier: Dossier) -> Markup:
    """Show single rows that differ."""
    if dossier.validation is None:
        return page_section("samples", "Examples", _NOT_VALIDATED)
    found = dossier.validation.diff.samples
    if not found:
        return page_section("samples", "Examples", html_tag("p", "No row differs."))
    heads = (
        TableColumn("Kind"), TableColumn("Key", is_wide=True), TableColumn("Old", is_wide=True),
        TableColumn("New", is_wide=True),
    )  # fmt: skip
    return page_section(
        "samples", "Examples", page_table(heads, [sample_row(sample) for sample in found])
    )


def sample_row(sample: DiffSample) -> tuple[Any, ...]:
    """Give kind, key, old and new of an example, ready for a table."""
    return (
        sample.kind,
        _sample_values(sample.key),
        _sample_values(sample.old),
        _sample_values(sample.new),
    )


def _sample_values(values: dict[str, Any] | None) -> Markup:
    if not values:
        return escape(None)
    shown: list[Any] = [
        _name_and_value(name, value) for name, value in list(values.items())[:MAX_FIELDS]
    ]
    if len(values) > MAX_FIELDS:
        shown.append(f"and {len(values) - MAX_FIELDS} more")
    return html_tag(
        "span", *(html_tag("span", pair, class_="pair") for pair in shown), class_="small"
    )


def _name_and_value(name: str, value: Any) -> Markup:
    text = "null" if value is None else str(value)
    if len(text) > MAX_FIELD_LENGTH:
        text = f"{shorten(text, MAX_FIELD_LENGTH)} ({len(text):,} characters)"
    return join([html_tag("span", shorten(name, 80), class_="soft"), " ", text])
