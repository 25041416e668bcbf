"""Views of publish, rollback, versions, evidence, maintain, verify, reproduce and audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.cli.render.page import (
    TextPage,
    format_identity,
    format_moment,
    format_partitions,
    format_size,
)
from lakehouse_backfill.cli.render.runs import next_command
from lakehouse_backfill.errors import command_line

if TYPE_CHECKING:
    from lakehouse_backfill.domain.table import StoredCheck
    from lakehouse_backfill.results.proof import (
        AuditGuaranteesResult,
        AuditVerifyResult,
        GuaranteeCheck,
        ReproduceResult,
        VerifyResult,
    )
    from lakehouse_backfill.results.publications import (
        EvidenceResult,
        MaintainResult,
        PublishPreviewResult,
        PublishResult,
        PublishTogetherResult,
        RetentionLine,
        RollbackPreviewResult,
        RollbackResult,
        RollbackTogetherResult,
        VersionsResult,
    )


def render_audit_verify(page: TextPage, result: AuditVerifyResult) -> None:
    """Draw what was found, what it means, and the heads that are worth keeping elsewhere."""
    if result.intact:
        page.line("what was recorded is as it was written", "bold")
    else:
        page.line("what was recorded is NOT as it was written", "bold")
        page.line(f"first: {result.first_bad}")
        page.line("Somebody changed it by other means. What it says of approvals proves nothing.")
    older = f"{result.unchained} written before events were chained: edits until then are not found"
    page.facts(
        (
            ("events", result.events),
            ("runs", result.runs),
            ("products", result.products),
            ("older", older if result.unchained else None),
            (
                "kept heads",
                "none was given: a log that was rewritten as a whole is not found; keep these, and "
                "give them with --against"
                if result.compared is None
                else f"{result.compared} compared"
                + (": the log still holds all of them" if result.intact else ""),
            ),
        )
    )
    page.table(
        "heads: keep a copy elsewhere",
        ("run", "newest hash"),
        sorted(result.heads.items()),
        most=50,
    )


def render_verify(page: TextPage, result: VerifyResult) -> None:
    """Draw what was compared, what differs first, and which data was read for it."""
    page.line(_verify_heading(result), "bold")
    page.line(_depth_note(result))
    _check_table(page, result.checks, ("name",))


def _verify_heading(result: VerifyResult) -> str:
    unknown = sum(1 for check in result.checks if check.ok is None)
    if not result.accepted:
        is_not = "as" if result.intact else "NOT as"
        return f"nobody has accepted this run; what is recorded of it is {is_not} it was written"
    if not result.intact:
        return "what is stored is NOT what was accepted"
    if unknown:
        return f"what could be compared is what was accepted; {unknown} could not be compared"
    return "what is stored is what was accepted"


def _depth_note(result: VerifyResult) -> str:
    if not result.deep:
        return "not deep: sizes, metadata and control rows were compared, no data was read"
    by_spark = result.partitions_read_by_spark
    return (
        f"deep: the bytes of {result.files_read} data files were read, and the rows of {by_spark} "
        "partitions by Spark" + ("" if by_spark else ": those bytes vouch for the rows")
    )


def render_reproduce(page: TextPage, result: ReproduceResult) -> None:
    """Draw what came out again; partitions that differ come first."""
    verdict = "came out as it was accepted" if result.equal else "did NOT come out as accepted"
    page.line(f"{result.run_id} {verdict}", "bold")
    rows = [
        (one.partition, _OUTCOMES[one.equal], one.accepted, one.again)
        for one in sorted(result.partitions, key=lambda one: bool(one.equal))
    ]
    page.table("partitions", ("partition", "equal", "accepted", "again"), rows, most=50)
    for note in result.notes:
        page.line(note)


def render_audit_guarantees(page: TextPage, result: AuditGuaranteesResult) -> None:
    """Draw what was sampled of each product, and what held."""
    page.line(f"what is promised {'holds' if result.held else 'does NOT hold'}", "bold")
    rows = [
        (one.product, one.run_id or "none", one.chunk_id or "none", one.because)
        for one in result.sampled
    ]
    page.table("sampled", ("product", "run", "chunk", "why this one"), rows, most=50)
    _check_table(page, result.checks, ("product", "name"))


def _check_table(
    page: TextPage, checks: Sequence[StoredCheck | GuaranteeCheck], names: tuple[str, ...]
) -> None:
    order = (False, None, True)
    rows = [
        (*(getattr(one, name) for name in names), _OUTCOMES[one.ok], one.because)
        for one in sorted(checks, key=lambda one: order.index(one.ok))
    ]
    page.table("checks", (*names, "ok", "because"), rows, most=100)


_OUTCOMES = {True: "yes", False: "NO", None: "not comparable"}


def render_publish(page: TextPage, result: PublishResult) -> None:
    """Draw what became visible."""
    if result.was_published:
        page.line(f"was published version {result.version} before; nothing was changed", "bold")
        page.facts((("product", result.product), ("run", result.run_id)))
    else:
        page.line(f"published version {result.version}", "bold")
        page.facts(
            (
                ("product", result.product),
                ("run", result.run_id),
                *_swap_facts(result),
                ("supersedes", format_identity(result.supersedes)),
            )
        )
    _post_publish_table(page, result)
    page.next_command(next_command(result))


def render_publish_preview(page: TextPage, result: PublishPreviewResult) -> None:
    """Draw what would become visible."""
    page.line(f"would be published version {result.version}; nothing was changed", "bold")
    page.facts(
        (
            ("product", result.product),
            ("run", result.run_id),
            ("partitions", format_partitions(result.partitions)),
            ("table", result.table),
        )
    )
    page.next_command(command_line("publish", result.run_id))


def render_publish_together(page: TextPage, result: PublishTogetherResult) -> None:
    """Draw the runs that became visible by one commit."""
    rows = [
        (one.product, one.run_id, one.version, format_identity(one.snapshot_id))
        for one in result.published
    ]
    page.table("became visible by one commit", _GROUP_COLUMNS, rows)


_GROUP_COLUMNS = ("product", "run", "output version", "snapshot")


def _swap_facts(result: PublishResult | RollbackResult) -> tuple[tuple[str, Any], ...]:
    return (
        ("table", result.table),
        ("snapshot", format_identity(result.snapshot_id) if result.snapshot_id else None),
        ("files in", result.files_added),
        ("files out", result.files_removed),
        ("rows in", result.rows_added),
        ("rows out", result.rows_removed),
        ("seconds", result.seconds),
    )


def _post_publish_table(page: TextPage, result: PublishResult) -> None:
    """Draw the checks and hooks that followed, each with how it ended."""
    rows = [
        ("check", check.name, "passed" if check.passed else "FAILED", check.detail)
        for check in result.checks_after or ()
    ]
    rows += [
        (f"hook {call.on}", call.hook, "done" if call.is_ok else "FAILED", call.detail)
        for call in result.hooks or ()
    ]
    page.table("around it", ("what", "name", "ended", "detail"), rows)


def render_rollback(page: TextPage, result: RollbackResult) -> None:
    """Draw what came back."""
    page.line(f"rolled back to version {result.version}", "bold")
    labels = result.partitions
    page.facts(
        (
            ("product", result.product),
            ("partitions", None if labels is None else format_partitions(labels)),
            *_swap_facts(result),
            ("reason", result.reason or None),
        )
    )
    page.next_command(command_line("versions", result.product))


def render_rollback_preview(page: TextPage, result: RollbackPreviewResult) -> None:
    """Draw what would come back."""
    page.line(f"would be rolled back to version {result.version}; nothing was changed", "bold")
    page.facts(
        (
            ("product", result.product),
            ("partitions", format_partitions(result.partitions)),
            ("runs undone", result.runs_undone),
        )
    )
    for item in result.rewritten:
        page.line(f"rewritten: {format_partitions(item.partitions)}, because {item.because}")
    if result.columns_stay:
        columns = ", ".join(result.columns_stay)
        page.line(f"columns stay: {columns}; old rows read null in new columns")
    page.next_command(command_line("versions", result.product))


def render_rollback_together(page: TextPage, result: RollbackTogetherResult) -> None:
    """Draw the products that were rolled back by one commit, or would."""
    rows = [
        (one.product, None, one.version, format_identity(getattr(one, "snapshot_id", None)))
        for one in result.rolled_back
    ]
    page.table("rolled back by one commit", _GROUP_COLUMNS, rows)


def render_versions(page: TextPage, result: VersionsResult) -> None:
    """Draw the accepted versions, newest first."""
    names = (
        "version", "action", "run", "snapshot", "accepted at", "by", "partitions", "supersedes",
    )  # fmt: skip
    rows = [
        (
            format_identity(row.version),
            row.action,
            row.run_id,
            format_identity(row.snapshot_id),
            format_moment(row.accepted_at),
            row.accepted_by,
            row.partitions,
            format_identity(row.supersedes),
        )
        for row in result.versions
    ]
    page.table(result.product, names, rows, most=50, is_copied=True)


def render_evidence(page: TextPage, result: EvidenceResult) -> None:
    """Draw where the page and the archive lie."""
    page.facts((("page", result.report), ("archive", result.archive)))


_RETENTION_COLUMNS = ("kind", "name", "owner", "until", "because")


def render_maintain(page: TextPage, result: MaintainResult) -> None:
    """Draw what was removed, what is kept and why, and what is left to clean up."""
    if not result.retired and not result.deleted:
        page.line("nothing is to be removed; nothing was changed")
    title = "would be removed; nothing was changed" if result.dry_run else "removed"
    page.table(title, _RETENTION_COLUMNS, [*map(_retention_row, result.retired)], most=50)
    page.table("kept", _RETENTION_COLUMNS, [*map(_retention_row, result.kept)], most=50)
    title = "files of runs never published: " + (
        "would be deleted" if result.dry_run else "deleted"
    )
    deleted = [
        (one.run_id, one.shadow, one.files, format_size(one.size_bytes), one.kept_files)
        for one in result.deleted
    ]
    page.table(title, ("run", "shadow", "files", "bytes", "kept: a table lists them"), deleted,
               most=50)  # fmt: skip
    rows = [
        (one.shadow, format_size(one.size_bytes), one.because, one.fix, one.command)
        for one in result.left
    ]
    page.table("files left", ("shadow", "bytes", "because", "what to do", "or, in Spark"), rows,
               most=None, is_copied=True)  # fmt: skip


def _retention_row(item: RetentionLine) -> tuple[Any, ...]:
    until = format_moment(item.until) if item.until else None
    return item.kind, item.name, item.owner, until, item.because
