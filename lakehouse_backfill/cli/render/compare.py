"""Views of diff, its preview, the causes of `diff --attribute`, and reconcile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.cli.render.page import TextPage, read_fields, verdict_mark

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import PartitionBalance
    from lakehouse_backfill.domain.comparison.diff import ColumnDiff, DiffSample, FileTotals
    from lakehouse_backfill.results import comparison


Data = Mapping[str, Any]
#: Samples of one group that are drawn; JSON and evidence hold all.
_MAX_CAUSE_SAMPLES = 2
_COUNTS = "old rows: old_rows | new rows: new_rows | added | removed | changed | unchanged"


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
    groups = _with_partition(parts, "groups")
    page.records(
        "by partition", "partition | cause | rows | in: factors | columns", groups,
        cause=lambda group: group["cause"].replace("_", " "),
        factors=_factors_text,
        columns=lambda group: ", ".join(f"{n} {count:,}" for n, count in group["columns"].items()),
    )  # fmt: skip
    page.records(
        "what came to the inputs",
        "partition | input | late: late_rows | upstream: upstream_rows | deleted: deleted_rows | "
        "told by: told_by",
        _with_partition(parts, "inputs"),
    )
    samples = [
        {**sample, "factors": group["factors"]}
        for group in groups
        for sample in group["samples"][:_MAX_CAUSE_SAMPLES]
    ]
    columns = "cause: factors | : kind | key | old | new"
    page.records("samples by cause", columns, samples, factors=_factors_text)
    for part in parts:
        if part["live"]:
            # Without a run that made the rows, the commit is the one that wrote them.
            verb = "also changed" if part["made_by"] else "last written"
            page.line(f"{part['partition']} was {verb} by {'; '.join(part['live'])}")
        for note in part["notes"]:
            page.line(f"{part['partition']}: {note}")


def _with_partition(parts: list[Data], name: str) -> list[Data]:
    """Return what each partition lists under the name, with the partition's label."""
    return [{**each, "partition": part["partition"]} for part in parts for each in part[name]]


def _factors_text(group: Data) -> str:
    # The model is loaded by who draws causes, not by every command.
    from lakehouse_backfill.domain.comparison.attribution import describe_factors

    return describe_factors(group["factors"])


def _engine_text(result: comparison.DiffResult | comparison.DiffPreviewResult) -> str:
    """Name the engine, and why it was chosen."""
    choice = result.engine_choice
    return f"{choice.engine}: {choice.why}" if choice else result.engine


def render_preview(page: TextPage, result: comparison.DiffPreviewResult) -> None:
    """Draw what is proven to be the same, then what would be read of each side."""
    proven = "identical" if result.identical else "not proven: rows have to be compared"
    page.line(f"{result.old}  ->  {result.new}", "bold")
    page.facts(
        (
            ("by metadata alone", proven),
            ("same files", _load_text(result.shared)),
            ("equal by fingerprint", _load_text(result.equal_by_fingerprint)),
            ("old, to read", _load_text(result.old_to_read)),
            ("new, to read", _load_text(result.new_to_read)),
            ("the same, to count", _load_text(result.shared_to_count)),
            ("key", ", ".join(result.key) or "none: rows are compared as a multiset"),
            ("engine", _engine_text(result)),
            ("not proven", result.proof_limit),
        )
    )
    read = [one for one in result.partitions if one.proven_by is None]
    page.records(
        f"{len(read):,} of {len(result.partitions):,} partitions would be read",
        "partition | old | new", read,
        old=lambda one: _load_text(one.old), new=lambda one: _load_text(one.new),
    )  # fmt: skip


def _load_text(load: FileTotals) -> str:
    return f"{load.files:,} files, {load.rows:,} rows, {load.bytes / 2**20:,.1f} MiB"


def render_diff(page: TextPage, result: comparison.DiffResult) -> None:
    """Draw the sums, then where, which columns, and a few rows."""
    files = result.files
    page.line(f"{result.old}  ->  {result.new}", "bold")
    page.facts(
        (
            *read_fields(result.summary, _COUNTS),
            (
                "files",
                f"{files.shared:,} shared and not read, {files.old_only:,} only old, "
                f"{files.new_only:,} only new",
            ),
            ("key", result.key or "none: rows are compared as a multiset"),
            ("engine", _engine_text(result)),
            ("how", result.how),
            ("rows that repeat a key", result.duplicate_keys or None),
            ("not proven", result.proof_limit),
        )
    )
    differing = [item for item in result.partitions if item.added or item.removed or item.changed]
    title = f"{len(differing):,} of {len(result.partitions):,} partitions differ"
    page.records(title, f"partition | {_COUNTS}", differing)
    render_changed_columns(page, result)
    if result.attribution:
        render_causes(page, result.attribution)


def render_changed_columns(page: TextPage, result: comparison.DiffResult) -> None:
    """Draw which columns changed, and a few rows."""
    changed = [
        item
        for item in result.columns
        if item.changed or (item.distribution and item.distribution.is_shifted)
    ]
    columns = "column: name | changed rows: changed | shift | distribution"
    page.records(
        "changed columns", columns, changed, shift=_shift_text, distribution=_distribution_text
    )
    added = result.added_columns or ()
    page.records("new columns", "column: name | rows with a value: rows", added)
    page.records("samples", ": kind | key | values", result.samples, values=_changed_values)


def render_reconcile(page: TextPage, result: comparison.ReconcileResult) -> None:
    """Draw unequal partitions first."""
    found = sorted(result.partitions, key=lambda row: row.equal)
    differing = sum(not row.equal for row in found)
    verdict = "equal" if result.equal else f"{differing:,} of {len(found):,} differ"
    page.line(f"{len(found):,} partitions: {verdict}", "bold")
    page.records(
        "",
        ": equal | partition | old rows: old_count | new rows: new_count | "
        "old checksum: old_checksum | new checksum: new_checksum",
        found,
        equal=_balance_verdict,
        old_checksum=lambda row: _hash_digits(row.old_checksum),
        new_checksum=lambda row: _hash_digits(row.new_checksum),
    )


def _balance_verdict(row: PartitionBalance) -> Any:
    return verdict_mark(is_good=True) if row.equal else "differs"


def _changed_values(sample: DiffSample) -> str:
    old, new = sample.old or {}, sample.new or {}
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


def _distribution_text(column: ColumnDiff) -> str | None:
    """Describe how far the distribution moved, and whether that is more than the limit."""
    found = column.distribution
    if found is None:
        return None
    text = f"{found.test.upper()} {found.value:.3f}"
    if found.is_unjudged:
        return f"{text}, not judged (one range holds nearly all values)"
    return f"{text}, shifted (over {found.limit:.2f})" if found.is_shifted else text


def _hash_digits(checksum: str) -> str:
    """The part of a checksum's text that differs: the hash after algorithm, shape and rows."""
    return checksum.rpartition(":")[2][-16:]
