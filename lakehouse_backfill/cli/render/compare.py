"""Views of diff, its preview, the causes of `diff --attribute`, and reconcile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.cli.render.page import TextPage, format_cell, verdict_mark

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import ColumnDiff, Distribution, PartitionDiff
    from lakehouse_backfill.domain.diff import FileTotals
    from lakehouse_backfill.results.comparison import (
        DiffPreviewResult,
        DiffResult,
        ReconcileResult,
    )


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
            # Without a run that made the rows, the commit is the one that wrote them.
            verb = "also changed" if part["made_by"] else "last written"
            page.line(f"{part['partition']} was {verb} by {'; '.join(part['live'])}")
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
    from lakehouse_backfill.domain.diff import describe_factors

    return describe_factors(group["factors"])


def _engine_text(result: DiffResult | DiffPreviewResult) -> str:
    """Name the engine, and why it was chosen."""
    choice = result.engine_choice
    return f"{choice.engine}: {choice.why}" if choice else result.engine


def render_preview(page: TextPage, result: DiffPreviewResult) -> None:
    """Draw what is proven to be the same, then what would be read of each side."""
    page.line(f"{result.old}  ->  {result.new}", "bold")
    page.facts(
        (
            (
                "by metadata alone",
                "identical" if result.identical else "not proven: rows have to be compared",
            ),
            ("same files", _load_text(result.shared)),
            ("equal by fingerprint", _load_text(result.equal_by_fingerprint)),
            ("old, to read", _load_text(result.old_to_read)),
            ("new, to read", _load_text(result.new_to_read)),
            ("the same, to count", _load_text(result.shared_to_count)),
            ("key", ", ".join(result.key) or "none: rows are compared as a multiset"),
            ("engine", _engine_text(result)),
        )
    )
    rows = [
        (one.partition, _load_text(one.old), _load_text(one.new))
        for one in result.partitions
        if one.proven_by is None
    ]
    title = f"{len(rows):,} of {len(result.partitions):,} partitions would be read"
    page.table(title, ("partition", "old", "new"), rows)


def _load_text(load: FileTotals) -> str:
    return f"{load.files:,} files, {load.rows:,} rows, {load.bytes / 2**20:,.1f} MiB"


_COUNT_FIELDS = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
_COUNT_NAMES = tuple(name.replace("_", " ") for name in _COUNT_FIELDS)


def render_diff(page: TextPage, result: DiffResult) -> None:
    """Draw the sums, then where, which columns, and a few rows."""
    files = result.files
    page.line(f"{result.old}  ->  {result.new}", "bold")
    page.facts(
        (
            *zip(_COUNT_NAMES, _counts(result.summary), strict=True),
            (
                "files",
                f"{files.shared:,} shared and not read, {files.old_only:,} only old, "
                f"{files.new_only:,} only new",
            ),
            ("key", result.key or "none: rows are compared as a multiset"),
            ("engine", _engine_text(result)),
            ("how", result.how),
            ("rows that repeat a key", result.duplicate_keys or None),
        )
    )
    differing = [item for item in result.partitions if item.added or item.removed or item.changed]
    page.table(
        f"{len(differing):,} of {len(result.partitions):,} partitions differ",
        ("partition", *_COUNT_NAMES),
        [(item.partition, *_counts(item)) for item in differing],
    )
    rows = [
        (item.name, item.changed, _shift_text(item), _distribution_text(item.distribution))
        for item in result.columns
        if item.changed or (item.distribution and item.distribution.is_shifted)
    ]
    page.table("changed columns", ("column", "changed rows", "shift", "distribution"), rows)
    new = [(item.name, item.rows) for item in result.added_columns or ()]
    page.table("new columns", ("column", "rows with a value"), new)
    samples = [
        (item.kind, format_cell(item.key), _changed_values(item.old or {}, item.new or {}))
        for item in result.samples
    ]
    page.table("samples", ("", "key", "values"), samples)
    if result.attribution:
        render_causes(page, result.attribution)


def _counts(one: PartitionDiff) -> tuple[int, ...]:
    return tuple(getattr(one, name) for name in _COUNT_FIELDS)


def render_reconcile(page: TextPage, result: ReconcileResult) -> None:
    """Draw unequal partitions first."""
    found = sorted(result.partitions, key=lambda row: row.equal)
    differing = sum(not row.equal for row in found)
    verdict = "equal" if result.equal else f"{differing:,} of {len(found):,} differ"
    page.line(f"{len(found):,} partitions: {verdict}", "bold")
    rows = [
        (
            verdict_mark(is_good=True) if row.equal else "differs",
            row.partition,
            row.old_count,
            row.new_count,
            _hash_digits(row.old_checksum),
            _hash_digits(row.new_checksum),
        )
        for row in found
    ]
    names = ("", "partition", "old rows", "new rows", "old checksum", "new checksum")
    page.table("", names, rows)


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if not old or not new:
        return ", ".join(f"{name}={value}" for name, value in (old or new).items())
    return ", ".join(
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    )


def _shift_text(column: ColumnDiff) -> str | None:
    """Describe how far a column moved: a number's mean in standard deviations, else an index."""
    if column.shift is None:
        return None
    unit = "standard deviations" if "mean" in column.old else "stability index"
    return f"{column.shift:.2f} {unit}"


def _distribution_text(found: Distribution | None) -> str | None:
    """Describe how far the distribution moved, and whether that is more than the limit."""
    if found is None:
        return None
    text = f"{found.test.upper()} {found.value:.3f}"
    if found.is_unjudged:
        return f"{text}, not judged (one range holds nearly all values)"
    return f"{text}, shifted (over {found.limit:.2f})" if found.is_shifted else text


def _hash_digits(checksum: str) -> str:
    """The part of a checksum's text that differs: the hash after algorithm, shape and rows."""
    return checksum.rpartition(":")[2][-16:]
