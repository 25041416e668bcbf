"""HTML of results for notebooks: tables and small bars; every text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import PartitionDiff
    from lakehouse_backfill.results.comparison import DiffResult
    from lakehouse_backfill.results.runs import PlanResult, RunLine, StatusResult

#: More rows than this are counted below the table, not drawn.
MAX_ROWS = 50
_KINDS = ("added", "removed", "changed")
#: Blue, orange and grey: told apart by people who do not see red and green apart.
_COLOURS = {"added": "#2b6cb0", "removed": "#c05621", "changed": "#718096"}
_BAR_WIDTH = 240


def plan_html(plan: PlanResult) -> Markup:
    """Draw a plan: what it changes, the pinned snapshots, open questions and notes."""
    estimate = plan.estimate
    first, last = plan.partitions[0], plan.partitions[-1]
    scope = f"{len(plan.partitions):,} partitions of {plan.partition_field.column}"
    return _page(
        f"{plan.run_id}: {plan.state or 'not registered'}",
        _table(
            ("", ""),
            (
                ("product", plan.product),
                ("changes", f"{scope}, {first} to {last}"),
                ("publication", f"{plan.publish_mode}: {plan.publishing}"),
                ("chunks", f"{len(plan.chunks):,}"),
                ("reads", f"{estimate.input_rows:,} rows in {estimate.input_files:,} files"),
                ("duration", _known(estimate.duration_s, "{:,.0f} s, by earlier runs")),
                ("cost", _known(estimate.cost_usd, "{:,.2f} USD")),
                ("undo", plan.undo),
            ),
        ),
        _titled(
            "Pinned",
            ("name", "table", "as asked for", "snapshot", "pin"),
            [(pin.name, pin.table, pin.requested, pin.snapshot_id, pin.mode) for pin in plan.pins],
        ),
        _titled(
            "Consumers",
            ("name", "restatement"),
            [
                (one.name, "tolerates" if one.tolerates_restatement else "does NOT tolerate")
                for one in plan.consumers
            ],
        ),
        _titled(
            "Not answered: blocks approval",
            ("", "question", "how"),
            [(one.number, one.question, one.how) for one in plan.checklist if not one.answer],
        ),
        _list((*plan.warnings, *plan.notes)),
    )


def _known(value: float | None, text: str) -> str:
    return "not known yet" if value is None else text.format(value)


def diff_html(diff: DiffResult) -> Markup:
    """Draw a diff: the sums, a bar for each differing partition, changed columns and samples."""
    differing = [one for one in diff.partitions if _differing_rows(one)]
    most = max(map(_differing_rows, differing), default=1)
    title = f"{len(differing):,} of {len(diff.partitions):,} partitions differ"
    return _page(
        f"{diff.old} \N{RIGHTWARDS ARROW} {diff.new}",
        _table(("old rows", "new rows", *_KINDS, "unchanged"), [_counts(diff.summary)]),
        _titled(
            title,
            ("partition", "", *_KINDS, "unchanged"),
            [
                (one.partition, _bar(one, most), *(getattr(one, kind) for kind in _KINDS),
                 one.unchanged)
                for one in differing
            ],
        ),
        _titled(
            "Changed columns",
            ("column", "changed rows"),
            [(one.name, one.changed) for one in diff.columns if one.changed],
        ),
        _titled(
            "Samples",
            ("", "key", "old", "new"),
            [(one.kind, _values(one.key), _values(one.old), _values(one.new))
             for one in diff.samples],
        ),
    )  # fmt: skip


def _differing_rows(one: PartitionDiff) -> int:
    return one.added + one.removed + one.changed


def _counts(one: PartitionDiff) -> tuple[int, ...]:
    return (one.old_rows, one.new_rows, *(getattr(one, kind) for kind in _KINDS), one.unchanged)


def _bar(one: PartitionDiff, most: int) -> Markup:
    parts = Markup("").join(
        Markup(
            '<span title="{}: {:,}" style="display:inline-block;height:.8em;'
            'width:{:.0f}px;background:{}"></span>'
        ).format(kind, count, max(1, _BAR_WIDTH * count / most), _COLOURS[kind])
        for kind in _KINDS
        if (count := getattr(one, kind))
    )
    return Markup('<span style="white-space:nowrap">{}</span>').format(parts)


def _values(row: dict[str, Any] | None) -> str | None:
    return None if row is None else ", ".join(f"{name}={value}" for name, value in row.items())


def status_html(status: StatusResult) -> Markup:
    """Draw one run as the answers to three questions and its gates, several as a table."""
    if len(status.runs) == 1:
        return _run_html(status.runs[0])
    return _page(
        f"{len(status.runs):,} runs",
        _table(
            ("run", "product", "state", "since", "next command"),
            [
                (one.run_id, one.product, one.state, f"{one.at:%Y-%m-%d %H:%M}", one.next_command)
                for one in status.runs
            ],
        ),
    )


def _run_html(run: RunLine) -> Markup:
    return _page(
        f"{run.run_id}: {run.state}",
        _table(
            ("", ""),
            (
                ("is my data safe?", run.is_safe),
                ("what do readers see?", run.readers_see),
                ("what to type next?", run.next_command),
            ),
        ),
        _titled(
            "Failed gates",
            ("of", "gate", "what was seen", "waived by"),
            [(gate.scope, gate.name, gate.detail, gate.waived_by) for gate in run.gates or ()],
        ),
    )


def _page(title: str, *parts: Markup) -> Markup:
    body = Markup("").join(parts)
    return Markup('<div class="lakehouse-backfill"><h4>{}</h4>{}</div>').format(title, body)


def _titled(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Draw a table with a title; nothing at all without rows."""
    return Markup("<h5>{}</h5>{}").format(title, _table(names, rows)) if rows else Markup("")


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    head = Markup("")
    if any(names):
        head = Markup("<thead><tr>{}</tr></thead>").format(_cells("th", names))
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(_cells("td", row)) for row in rows[:MAX_ROWS]
    )
    left = len(rows) - MAX_ROWS
    more = Markup("<p>… and {:,} more</p>").format(left) if left > 0 else ""
    return Markup("<table>{}<tbody>{}</tbody></table>{}").format(head, body, more)


def _cells(tag: str, values: Iterable[Any]) -> Markup:
    return Markup("").join(
        Markup('<{0} style="text-align:left">{1}</{0}>').format(
            tag, "\N{EN DASH}" if value is None else value
        )
        for value in values
    )


def _list(texts: Iterable[str]) -> Markup:
    items = Markup("").join(Markup("<li>{}</li>").format(text) for text in texts)
    return Markup("<ul>{}</ul>").format(items) if items else Markup("")
