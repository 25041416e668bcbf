"""What differs between old and new: by partition, by total, by column, by example."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.model.checks import ColumnDiff, DiffSample, MeasureTotal, Validation
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import (
    NOTHING,
    Markup,
    escape,
    join,
    number,
    share,
    signed,
    tag,
)
from lakehouse_backfill.report.parts import Column, code, folded, section, table

_KINDS = ("changed", "added", "removed")
_ABSENT = tag("p", "The run was not validated yet, so nothing was compared.")


def where(dossier: Dossier) -> Markup:
    """Show which partitions differ and how much: heat strips, row counts, a table."""
    if dossier.validation is None:
        return section("where", "Where it changes", _ABSENT)
    rows = [row for row in dossier.validation.diff.partitions if row.partition is not None]
    touched = sum(1 for row in rows if row.added or row.removed or row.changed)
    lead = f"{touched} of {len(dossier.plan.resolved.scope.partitions)} partitions differ."
    parts = [tag("p", lead)]
    if rows:
        parts.append(_strips(dossier.validation))
    if dossier.validation.balances:
        parts.append(_series(dossier.validation))
    return section("where", "Where it changes", *parts, _partition_table(dossier.validation))


def _strips(validation: Validation) -> Markup:
    rows = [row for row in validation.diff.partitions if row.partition is not None]
    labels = [str(row.partition) for row in rows]
    strips = {kind: charts.gather(labels, [getattr(row, kind) for row in rows]) for kind in _KINDS}
    highest = max(cell.value for cells in strips.values() for cell in cells)
    lines = [
        join(
            [
                tag("span", kind),
                charts.heat_strip(kind, cells, highest),
                tag("span", number(getattr(validation.diff.summary, kind)), class_="n"),
            ]
        )
        for kind, cells in strips.items()
    ]
    axis = tag("span", tag("span", labels[0]), tag("span", labels[-1]), class_="axis")
    blank = tag("span")
    is_shared = len(strips["added"]) < len(rows)
    cell = "neighbouring partitions share a cell" if is_shared else "one cell per partition"
    caption = f"Rows by kind of difference, {cell}: the stronger the colour, the more rows."
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", *lines, blank, axis, blank, class_="strip"),
    )


def _series(validation: Validation) -> Markup:
    labels = [row.partition for row in validation.balances]
    old = charts.gather(labels, [row.old_count for row in validation.balances])
    new = charts.gather(labels, [row.new_count for row in validation.balances])
    gains = charts.gather(labels, [row.new_count - row.old_count for row in validation.balances])
    legend = tag(
        "figcaption",
        "Rows per partition, from 0 to ",
        number(max(cell.value for cell in (*old, *new))),
        ": ",
        tag("span", tag("i", class_="key old"), "old"),
        tag("span", tag("i", class_="key new"), "new"),
        class_="legend",
    )
    low, high = min(cell.value for cell in gains), max(cell.value for cell in gains)
    below = f"Change of the row count per partition, from {signed(low)} to {signed(high)}"
    axis = tag("div", tag("span", labels[0]), tag("span", labels[-1]), class_="axis")
    return join(
        [
            tag("figure", legend, tag("div", charts.step_lines(old, new), class_="plot"), axis),
            tag(
                "figure",
                tag("figcaption", below),
                tag("div", charts.change_bars(gains), class_="plot low"),
                axis,
            ),
        ]
    )


def _partition_table(validation: Validation) -> Markup:
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
    return folded(f"All {len(rows)} partitions in numbers", table(columns, rows))


def totals(dossier: Dossier) -> Markup:
    """Set the declared totals side by side."""
    title = "Totals of the product, before and after"
    if dossier.validation is None:
        return section("totals", title, _ABSENT)
    if not dossier.validation.totals:
        return section("totals", title, tag("p", "The contract declares no totals."))
    columns = (
        Column("Total", is_wide=True),
        Column("Old", is_number=True),
        Column("New", is_number=True),
        Column("Change", is_number=True),
        Column("Share", is_number=True),
        Column("Old above, new below", is_wide=True),
    )
    rows = [_total(total) for total in dossier.validation.totals]
    lead = "Over the restated partitions only. Totals are declared in the product's contract."
    return section("totals", title, tag("p", lead), table(columns, rows))


def _total(total: MeasureTotal) -> tuple[Any, ...]:
    old, new = _amount(total.old), _amount(total.new)
    if old is None or new is None:
        return (total.name, total.old, total.new, NOTHING, NOTHING, NOTHING)
    bars = tag("div", charts.pair_bars(old, new), class_="bar")
    change = new - old
    return (total.name, total.old, total.new, signed(change), share(change, old), bars)


def _amount(value: float | str | None) -> float | None:
    """Decimals come as text, so that no digit is lost; a picture may lose some."""
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        return float(value)
    except ValueError:
        return None


def columns(dossier: Dossier) -> Markup:
    """Show how each column differs, with its distribution on both sides."""
    if dossier.validation is None:
        return section("columns", "Columns", _ABSENT)
    diff = dossier.validation.diff
    heads = (
        Column("Column", is_wide=True),
        Column("Changed rows", is_number=True),
        Column("Shift", is_number=True),
        Column("Old", is_wide=True),
        Column("New", is_wide=True),
    )
    ordered = sorted(diff.columns, key=lambda column: -column.changed)
    lead = (
        "Changed rows have the same key on both sides. Shift: for numbers the distance of the "
        "means in standard deviations of the old side; for categories the population stability "
        "index."
    )
    key = ", ".join(diff.key) or "none: rows were compared as wholes"
    return section(
        "columns",
        "Columns",
        tag("p", lead),
        tag("p", "Key: ", code(key), f". Compared by the {diff.engine} engine."),
        table(heads, [_column(column) for column in ordered]),
    )


def _column(column: ColumnDiff) -> tuple[Any, ...]:
    return (
        code(column.name), column.changed, column.shift, _spread(column.old), _spread(column.new),
    )  # fmt: skip


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
    return section("samples", "Examples", table(heads, [_sample(sample) for sample in found]))


def _sample(sample: DiffSample) -> tuple[Any, ...]:
    return (sample.kind, _values(sample.key), _values(sample.old), _values(sample.new))


def _values(values: dict[str, Any] | None) -> Markup:
    if not values:
        return escape(None)
    return tag(
        "span", ", ".join(_pair(name, value) for name, value in values.items()), class_="small"
    )


def _pair(name: str, value: Any) -> str:
    return f"{name} {'null' if value is None else value}"
