"""Views of diff, its preview, the causes of `diff --attribute`, and reconcile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.cli.render.page import TextPage, format_cell, verdict_mark

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import Distribution


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
            page.line(f"{part['partition']} was also changed by {'; '.join(part['live'])}")
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


def engine_text(data: Data) -> str:
    """Name the engine, and why it was chosen."""
    choice = data.get("engine_choice")
    return f"{choice['engine']}: {choice['why']}" if choice else str(data.get("engine"))


def render_preview(page: TextPage, data: Data) -> None:
    """Draw what is proven to be the same, then what would be read of each side."""
    page.line(f"{data['old']}  ->  {data['new']}", "bold")
    verdict = "identical" if data["identical"] else "not proven: rows have to be compared"
    page.facts(
        [
            ("by metadata alone", verdict),
            ("same files", _load_text(data["shared"])),
            ("equal by fingerprint", _load_text(data["equal_by_fingerprint"])),
            ("old, to read", _load_text(data["old_to_read"])),
            ("new, to read", _load_text(data["new_to_read"])),
            ("the same, to count", _load_text(data["shared_to_count"])),
            ("key", ", ".join(data["key"]) or "none: rows are compared as a multiset"),
            ("engine", engine_text(data)),
        ]
    )
    parts = data["partitions"]
    rows = [
        (one["partition"], *(_load_text(one[side]) for side in ("old", "new")))
        for one in parts
        if one["proven_by"] is None
    ]
    title = f"{len(rows):,} of {len(parts):,} partitions would be read"
    page.table(title, ("partition", "old", "new"), rows)


def _load_text(load: Data) -> str:
    return f"{load['files']:,} files, {load['rows']:,} rows, {load['bytes'] / 2**20:,.1f} MiB"


_COUNT_FIELDS = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")


def render_diff(page: TextPage, data: Data) -> None:
    """Draw the sums, then where, which columns, and a few rows; of a preview what would be read."""
    if data.get("preview"):
        render_preview(page, data)
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
            ("engine", engine_text(data)),
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
        render_causes(page, data["attribution"])


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
    """Describe how far a column moved: a number's mean in standard deviations, else an index."""
    shift = column.get("shift")
    if shift is None:
        return None
    is_number = "mean" in (column.get("old") or {})
    return f"{shift:.2f} standard deviations" if is_number else f"{shift:.2f} stability index"


def _parse_distribution(column: Mapping[str, Any]) -> Distribution | None:
    # The model is loaded by who draws columns, not by every command.
    from lakehouse_backfill.domain.checks import Distribution

    found = column.get("distribution")
    return Distribution.model_validate(found) if found else None


def _distribution_text(found: Distribution | None) -> str | None:
    """Describe how far the distribution moved, and whether that is more than the limit."""
    if found is None:
        return None
    text = f"{found.test.upper()} {found.value:.3f}"
    if found.is_unjudged:
        return f"{text}, not judged (one range holds nearly all values)"
    return f"{text}, shifted (over {found.limit:.2f})" if found.is_shifted else text


def _hash_digits(checksum: Any) -> str:
    """The part of a checksum's text that differs: the hash after algorithm, shape and rows."""
    return str(checksum).rpartition(":")[2][-16:]
