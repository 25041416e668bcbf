"""What differs, by partition, column, example; totals before and after.

Totals as exact numbers: the lake gives decimals as text, so that no digit is lost.

What differs between old and new: by partition, by column, by example.

Before and after, partition by partition: the row count and the product's declared totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import (
    ColumnDiff,
    Diff,
    DiffSample,
    MeasureTotal,
    ValidationResult,
)
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.charts import partition_axis
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import (
    NO_VALUE,
    Markup,
    TableColumn,
    code_text,
    escape,
    folded_details,
    format_number,
    format_signed,
    html_tag,
    join,
    page_section,
    page_table,
    shorten,
)
from lakehouse_backfill.report.html import format_percent as percent

#: Larger ones are shown as they are written; a picture or a percentage of them means nothing.
_MAX_AMOUNT = Decimal("1e100")


def parse_amount(value: float | str | None) -> Decimal | None:
    """Return a value as a number; None where there is none, or text that is no finite number."""
    if value is None:
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found) < _MAX_AMOUNT else None


def amount_change(old: float | str | None, new: float | str | None) -> Decimal | None:
    """Return new less old; a missing side of an additive total counts as zero, two give None."""
    before, after = parse_amount(old), parse_amount(new)
    if before is None and after is None:
        return None
    return (after or Decimal(0)) - (before or Decimal(0))


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
        charts.draw_heat_map(diff, labels),
        _partition_table(_numbers_title(len(rows), len(labels)), dossier.validation),
    )
    return page_section("where", "Where it changes", html_tag("p", lead), *parts)


def _numbers_title(listed: int, total: int) -> str:
    """Describe of how many partitions the numbers are: the diff omits those without a row."""
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
        charts.distribution_figures(diff.columns),
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
    """Return kind, key, old and new of an example, ready for a table."""
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


#: Totals with a picture; more stand in the table only.
MAX_TOTAL_FIGURES = 6
_TOTALS_TITLE = "Totals of the product, before and after"


@dataclass(frozen=True)
class PartitionSeries:
    """One number per partition on both sides."""

    name: str
    labels: tuple[str, ...]
    old: tuple[charts.Amount | None, ...]
    new: tuple[charts.Amount | None, ...]

    @property
    def changes(self) -> tuple[charts.Amount | None, ...]:
        """New less old; a side without a value counts as zero."""
        pairs = zip(self.old, self.new, strict=True)
        return tuple(
            None if old is None and new is None else (new or 0) - (old or 0) for old, new in pairs
        )


def totals_section(dossier: Dossier) -> Markup:
    """Set the declared totals side by side, then draw them by partition."""
    validation = dossier.validation
    if validation is None:
        absent = "The run was not validated yet, so nothing was compared."
        return page_section("totals", _TOTALS_TITLE, html_tag("p", absent))
    pictures = [_series_figure(each) for each in _drawn_series(validation)]
    if not validation.totals:
        return page_section(
            "totals", _TOTALS_TITLE, html_tag("p", "The contract declares no totals."), *pictures
        )
    heads = (
        TableColumn("Total", is_wide=True),
        TableColumn("Old", is_number=True),
        TableColumn("New", is_number=True),
        TableColumn("Change", is_number=True),
        TableColumn("Share", is_number=True),
        TableColumn("Partitions that differ", is_number=True),
    )
    lead = "Over the restated partitions only. Totals are declared in the product's contract."
    rows = [_total_row(total, is_first=dossier.is_first_load) for total in validation.totals]
    return page_section(
        "totals", _TOTALS_TITLE, html_tag("p", lead), page_table(heads, rows), *pictures
    )


def _total_row(total: MeasureTotal, *, is_first: bool) -> tuple[Any, ...]:
    found, old = amount_change(total.old, total.new), parse_amount(total.old)
    changed, part = (
        (NO_VALUE, NO_VALUE) if found is None else (format_signed(found), percent(found, old or 0))
    )
    moved = sum(1 for point in total.series if amount_change(point.old, point.new))
    count = f"{moved:,} of {len(total.series):,}" if total.series else NO_VALUE
    old_shown = "none" if is_first else _total_text(total.old)
    return (total.name, old_shown, _total_text(total.new), changed, part, count)


def _total_text(value: float | str | None) -> str:
    """Numbers keep their own digits; decimals came as text, and are set as numbers all the same."""
    return format_number(
        parse_amount(value) if isinstance(value, str) and parse_amount(value) is not None else value
    )


def _drawn_series(validation: ValidationResult) -> list[PartitionSeries]:
    balances = validation.balances
    rows = PartitionSeries(
        "rows",
        tuple(row.partition for row in balances),
        tuple(row.old_count for row in balances),
        tuple(row.new_count for row in balances),
    )
    drawn = [_series_of_total(total) for total in validation.totals[:MAX_TOTAL_FIGURES]]
    return [series for series in (rows, *drawn) if series.labels]


def _series_of_total(total: MeasureTotal) -> PartitionSeries:
    return PartitionSeries(
        total.name,
        tuple(point.partition for point in total.series),
        tuple(parse_amount(point.old) for point in total.series),
        tuple(parse_amount(point.new) for point in total.series),
    )


def _series_figure(series: PartitionSeries) -> Markup:
    old, new = (
        charts.group_cells(series.labels, series.old),
        charts.group_cells(series.labels, series.new),
    )
    changes = charts.group_cells(series.labels, series.changes)
    values = [cell.value for cell in (*old, *new) if cell.value is not None]
    if not values:
        return Markup("")
    name = shorten(series.name, 80)
    low, high = _axis_range(values)
    lines = charts.step_lines(f"{name} by partition, old and new", old, new, (low, high))
    plots = [
        _plot(lines, (format_number(max(values)), format_number(_axis_bottom(values))), "plot")
    ]
    gains = [cell.value or 0 for cell in changes]
    if any(gains):
        bars = charts.change_bars(f"change of {name} by partition", changes)
        ends = (_signed_end(max(gains)), _signed_end(min(gains)))
        plots.append(_plot(bars, ends, "plot low"))
    said = _series_legend(series, is_shared=len(old) < len(series.labels))
    return html_tag(
        "figure",
        html_tag("h3", name),
        html_tag("p", *said, class_="legend small soft"),
        html_tag("div", *plots, html_tag("span"), partition_axis(series.labels), class_="chart"),
    )


def _plot(picture: Markup, ends: tuple[str, str], style: str) -> Markup:
    scale = html_tag("span", *(html_tag("span", end) for end in ends), class_="scale n")
    return join([scale, html_tag("div", picture, class_=style)])


def _signed_end(value: charts.Amount) -> str:
    return format_signed(value) if value else "0"


def _series_legend(series: PartitionSeries, *, is_shared: bool) -> list[Any]:
    moved = sum(1 for value in series.changes if value)
    keys = [html_tag("span", html_tag("i", class_=f"key {side}"), side) for side in ("old", "new")]
    count = f"{moved:,} of {len(series.labels):,} partitions differ"
    words = "below, new less old" if moved else "both lines are the same"
    per = "; neighbouring partitions are summed up" if is_shared else ""
    return [*keys, f"{count}; {words}{per}"]


def _axis_bottom(values: Sequence[charts.Amount]) -> charts.Amount:
    """Start at zero, unless all values lie so close together that nothing could be seen."""
    low, high = min(values), max(values)
    return 0 if low >= 0 and (low == high or 2 * low < high) else low


def _axis_range(values: Sequence[charts.Amount]) -> tuple[float, float]:
    return float(_axis_bottom(values)), float(max(values))
