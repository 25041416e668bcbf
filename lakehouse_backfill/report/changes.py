"""What differs, by partition, column and example, and why; totals before and after.

Totals are exact numbers: the lake gives decimals as text, so that no digit is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import MeasureTotal, ValidationResult
from lakehouse_backfill.domain.comparison.attribution import CAUSE_CLASSES, describe_factors
from lakehouse_backfill.domain.comparison.diff import Distribution
from lakehouse_backfill.report import charts, html
from lakehouse_backfill.report.charts import Amount
from lakehouse_backfill.report.dossier import Dossier

#: Larger ones are shown as they are written; a picture or a percentage of them means nothing.
_MAX_AMOUNT = Decimal("1e100")
#: Totals with a picture; more stand in the table only.
MAX_TOTAL_FIGURES = 6


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


def where_facts(dossier: Dossier) -> dict[str, Any]:
    """Return which partitions differ, and the map of partitions and columns."""
    validation = dossier.validation
    if validation is None:
        return {}
    rows = [row for row in validation.diff.partitions if row.partition is not None]
    scope = dossier.plan.resolved.scope
    found = {*scope.partitions, *(str(row.partition) for row in rows)}
    labels = sorted(found, key=partitions.label_sort_key(scope.field))
    title = (
        f"All {len(labels):,} partitions in numbers"
        if len(labels) > 1
        else ("The partition in numbers")
    )
    if not rows:
        title = "All rows in numbers"
    elif len(rows) < len(labels):
        # The diff omits partitions without a row.
        title = f"{len(rows):,} of {len(labels):,} partitions in numbers; the others have no rows"
    return {
        "labels": labels,
        "touched": sum(1 for row in rows if row.added or row.removed or row.changed),
        "heat_map": charts.draw_heat_map(validation.diff, labels) if rows else None,
        "title": title,
        "checksums": {row.partition: "equal" if row.equal else "differ"
                      for row in validation.balances},
    }  # fmt: skip


def columns_facts(dossier: Dossier) -> dict[str, Any]:
    """Return how each column differs, with its distribution on both sides."""
    validation = dossier.validation
    return {
        "distributions": validation and charts.distribution_figures(validation.diff.columns),
        "distribution_text": _distribution_text,
        "description_text": _description_text,
    }


def _distribution_text(found: Distribution) -> str:
    text = f"{found.test.upper()} {found.value:.3g}, limit {found.limit:.2g}"
    if found.is_unjudged:
        text = f"not judged, one range holds nearly all values: {text}"
    return f"! shifted: {text}" if found.is_shifted else text


def _description_text(side: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_description_item(value)}" for name, value in side.items())


def _description_item(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {html.format_number(inner)}" for key, inner in value.items())
    return html.format_number(value)


def totals_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the declared totals side by side, and their pictures by partition."""
    validation = dossier.validation
    if validation is None:
        return {}
    return {
        "rows": [_total_row(one, is_first=dossier.is_first_load) for one in validation.totals],
        "figures": _series_figures(validation),
    }


def _total_row(total: MeasureTotal, *, is_first: bool) -> tuple[Any, ...]:
    found, old = amount_change(total.old, total.new), parse_amount(total.old)
    changed, part = html.NO_VALUE, html.NO_VALUE
    if found is not None:
        changed, part = html.format_signed(found), html.format_percent(found, old or 0)
    moved = sum(1 for point in total.series if amount_change(point.old, point.new))
    count = f"{moved:,} of {len(total.series):,}" if total.series else html.NO_VALUE
    old_shown = "none" if is_first else _total_text(total.old)
    return (total.name, old_shown, _total_text(total.new), changed, part, count)


def _total_text(value: float | str | None) -> str:
    """Numbers keep their own digits; decimals came as text, and are set as numbers all the same."""
    amount = parse_amount(value) if isinstance(value, str) else None
    return html.format_number(value if amount is None else amount)


def _series_figures(validation: ValidationResult) -> list[dict[str, Any]]:
    counts = [(row.partition, row.old_count, row.new_count) for row in validation.balances]
    drawn = [
        _series_figure(total.name, [
            (point.partition, parse_amount(point.old), parse_amount(point.new))
            for point in total.series
        ])
        for total in validation.totals[:MAX_TOTAL_FIGURES]
    ]  # fmt: skip
    return [figure for figure in (_series_figure("rows", counts), *drawn) if figure]


def _series_figure(
    name: str, points: Sequence[tuple[str, Amount | None, Amount | None]]
) -> dict[str, Any] | None:
    """Describe a picture of one number per partition on both sides; None without any number."""
    if all(old is None and new is None for _, old, new in points):
        return None
    labels, olds, news = zip(*points, strict=True)
    changes = [
        None if old is None and new is None else (new or 0) - (old or 0) for _, old, new in points
    ]
    old, new = charts.group_cells(labels, olds), charts.group_cells(labels, news)
    values = [cell.value for cell in (*old, *new) if cell.value is not None]
    name = html.shorten(name, 80)
    low, high = _axis_bottom(values), max(values)
    bars = charts.change_bars(f"change of {name} by partition", charts.group_cells(labels, changes))
    return {
        "name": name,
        "labels": labels,
        "moved": sum(1 for value in changes if value),
        "is_shared": len(old) < len(labels),
        "ends": (html.format_number(high), html.format_number(low)),
        "lines": charts.step_lines(
            f"{name} by partition, old and new", old, new, (float(low), float(high))
        ),
        "bars": bars,
        "bar_ends": bars and tuple(_signed_end(end) for end in bars.ends),
    }


def _signed_end(value: Amount) -> str:
    return html.format_signed(value) if value else "0"


def _axis_bottom(values: Sequence[Amount]) -> Amount:
    """Start at zero, unless all values lie so close together that nothing could be seen."""
    low, high = min(values), max(values)
    return 0 if low >= 0 and (low == high or 2 * low < high) else low


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


@dataclass(frozen=True)
class Cause:
    """A class of causes as the legend shows it."""

    name: str
    letter: str
    meaning: str
    style: str


_CAUSES = {
    name: Cause(name.replace("_", " "), *CAUSE_MEANINGS[name], f"k{place}")
    for place, name in enumerate(CAUSE_MEANINGS, start=1)
}


def causes_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the causes on the sampled partitions, or how to ask for them."""
    found = dossier.attribution
    if found is None:
        return {"command": dossier.typed(command_line("diff", dossier.run.run_id, "--attribute"))}
    groups = [group for part in found["partitions"] for group in part["groups"]]
    used = {group["cause"] for group in groups}
    return {
        "legend": [_CAUSES[name] for name in CAUSE_CLASSES if name in used],
        "bars": [(part, _cause_shares(part)) for part in found["partitions"]],
        "samples": [(group["factors"], one) for group in groups for one in group["samples"]],
        "describe_factors": describe_factors,
    }


def _cause_shares(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shares of one partition; one that is not zero is never drawn as nothing."""
    rows = dict.fromkeys(CAUSE_CLASSES, 0)
    for group in part["groups"]:
        rows[group["cause"]] += group["rows"]
    whole = sum(rows.values())
    return [
        {
            "cause": _CAUSES[name],
            "rows": count,
            "text": f"{_CAUSES[name].name} {count:,} ({html.format_percent(count, whole)})",
        }
        for name, count in rows.items()
        if count
    ]
