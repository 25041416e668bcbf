"""diff and reconcile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.cli.render import causes, previews
from lakehouse_backfill.cli.render.page import TextPage, format_cell, verdict_mark

if TYPE_CHECKING:
    from lakehouse_backfill.domain.watched import Distribution

Data = Mapping[str, Any]
_COUNT_FIELDS = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")


def render_diff(page: TextPage, data: Data) -> None:
    """Draw the sums, then where, which columns, and a few rows; of a preview what would be read."""
    if data.get("preview"):
        previews.render_preview(page, data)
        return
    summary = data["summary"]
    page.line(f"{data.get('old', 'old')}  ->  {data.get('new', 'new')}", "bold")
    page.facts((name.replace("_", " "), summary[name]) for name in _COUNT_FIELDS)
    files = data.get("files") or {}
    if files:
        shared = f"{files['shared']:,} shared and not read, {files['old_only']:,} only old, "
        page.facts([("files", f"{shared}{files['new_only']:,} only new")])
    page.facts(
        [
            ("key", data.get("key") or "none: rows are compared as a multiset"),
            ("engine", previews.engine_text(data)),
            ("how", data.get("how") or None),
            ("rows that repeat a key", data.get("duplicate_keys") or None),
        ]
    )
    _partition_table(page, data.get("partitions") or ())
    known = [(item, _parse_distribution(item)) for item in data.get("columns") or ()]
    rows = [
        (item["name"], item["changed"], _shift_text(item), _distribution_text(found))
        for item, found in known
        if item["changed"] or (found and found.is_shifted)
    ]
    page.table("changed columns", ("column", "changed rows", "shift", "distribution"), rows)
    new = [(item["name"], item["rows"]) for item in data.get("added_columns") or ()]
    page.table("new columns", ("column", "rows with a value"), new)
    _sample_table(page, data.get("samples") or ())
    if data.get("attribution"):
        causes.render_causes(page, data["attribution"])


def render_reconcile(page: TextPage, data: Data) -> None:
    """Draw unequal partitions first."""
    found = sorted(data["partitions"], key=lambda row: bool(row["equal"]))
    equal = sum(bool(row["equal"]) for row in found)
    verdict = "equal" if data["equal"] else f"{len(found) - equal:,} of {len(found):,} differ"
    page.line(f"{len(found):,} partitions: {verdict}", "bold")
    rows = [
        (
            verdict_mark(is_good=row["equal"]) if row["equal"] else "differs",
            row["partition"],
            row["old_count"],
            row["new_count"],
            _hash_digits(row["old_checksum"]),
            _hash_digits(row["new_checksum"]),
        )
        for row in found
    ]
    names = ("", "partition", "old rows", "new rows", "old checksum", "new checksum")
    page.table("", names, rows)


def _partition_table(page: TextPage, partitions: Sequence[Any]) -> None:
    differing = [item for item in partitions if item["added"] or item["removed"] or item["changed"]]
    rows = [(item.get("partition"), *(item[name] for name in _COUNT_FIELDS)) for item in differing]
    page.table(
        f"{len(differing):,} of {len(partitions):,} partitions differ",
        ("partition", *(name.replace("_", " ") for name in _COUNT_FIELDS)),
        rows,
    )


def _sample_table(page: TextPage, samples: Sequence[Any]) -> None:
    rows = []
    for item in samples:
        old, new = item.get("old") or {}, item.get("new") or {}
        rows.append((item["kind"], format_cell(item.get("key") or {}), _changed_values(old, new)))
    page.table("samples", ("", "key", "values"), rows)


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if not old or not new:
        return ", ".join(f"{name}={value}" for name, value in (old or new).items())
    return ", ".join(
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    )


def _shift_text(column: Mapping[str, Any]) -> str | None:
    """Say how far a column moved: a number's mean in standard deviations, else an index."""
    shift = column.get("shift")
    if shift is None:
        return None
    is_number = "mean" in (column.get("old") or {})
    return f"{shift:.2f} standard deviations" if is_number else f"{shift:.2f} stability index"


def _parse_distribution(column: Mapping[str, Any]) -> Distribution | None:
    # The model is loaded by who draws columns, not by every command.
    from lakehouse_backfill.domain.watched import Distribution

    found = column.get("distribution")
    return Distribution.model_validate(found) if found else None


def _distribution_text(found: Distribution | None) -> str | None:
    """Say how far the distribution moved, and whether that is more than the limit."""
    if found is None:
        return None
    text = f"{found.test.upper()} {found.value:.3f}"
    if found.is_unjudged:
        return f"{text}, not judged (one range holds nearly all values)"
    return f"{text}, shifted (over {found.limit:.2f})" if found.is_shifted else text


def _hash_digits(checksum: Any) -> str:
    """The part of a checksum's text that differs: the hash after algorithm, shape and rows."""
    return str(checksum).rpartition(":")[2][-16:]
