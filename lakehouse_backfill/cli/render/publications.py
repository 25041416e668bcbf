"""Views of publish, rollback, versions, evidence, maintain, verify, reproduce and audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from lakehouse_backfill.cli.render.page import (
    GOOD,
    TextPage,
    format_identity,
    format_partitions,
    read_fields,
)
from lakehouse_backfill.cli.render.runs import ask_for_note, next_command
from lakehouse_backfill.command_lines import command_line

if TYPE_CHECKING:
    from lakehouse_backfill.domain.checks import StoredCheck
    from lakehouse_backfill.results import proof, publications


def render_audit_verify(page: TextPage, result: proof.AuditVerifyResult) -> None:
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
            *read_fields(result, "events | runs | products"),
            ("older", older if result.unchained else None),
            ("signatures", _signatures_text(result)),
            ("kept heads", _kept_heads_text(result)),
            ("anchor", _anchor_text(result)),
        )
    )
    heads = sorted(result.heads.items())
    page.table("heads: keep a copy elsewhere", ("run", "newest hash"), heads, most=50)


def _kept_heads_text(result: proof.AuditVerifyResult) -> str:
    if result.compared is None:
        if result.anchored is not None:
            return "none was given"
        return (
            "none was given: a log that was rewritten as a whole is not found; keep these, and "
            "give them with --against"
        )
    still = ": the log still holds all of them" if result.intact else ""
    return f"{result.compared} compared{still}"


def _signatures_text(result: proof.AuditVerifyResult) -> str:
    if result.signed is None:
        return "none: who acted is the login's name, or that of --by"
    return f"{result.signed} verified, {result.unsigned} decisions and publications without one"


def _anchor_text(result: proof.AuditVerifyResult) -> str | None:
    if result.anchored is None:
        return None
    still = ": the lake still holds all of them" if result.intact else ""
    lacks = f"; {result.unanchored} heads are not in it: recover --all writes them"
    return f"{result.anchored} records compared{still}{lacks if result.unanchored else ''}"


def render_verify(page: TextPage, result: proof.VerifyResult) -> None:
    """Draw what was compared, what differs first, and which data was read for it."""
    page.line(_verify_heading(result), "bold")
    page.line(_depth_note(result))
    _check_table(page, result.checks, "name")


def _verify_heading(result: proof.VerifyResult) -> str:
    unknown = sum(1 for check in result.checks if check.ok is None)
    if not result.accepted:
        is_not = "as" if result.intact else "NOT as"
        return f"nobody has accepted this run; what is recorded of it is {is_not} it was written"
    if not result.intact:
        return "what is stored is NOT what was accepted"
    if unknown:
        return f"what could be compared is what was accepted; {unknown} could not be compared"
    return "what is stored is what was accepted"


def _depth_note(result: proof.VerifyResult) -> str:
    if not result.deep:
        return "not deep: sizes, metadata and control rows were compared, no data was read"
    by_spark = result.partitions_read_by_spark
    return (
        f"deep: the bytes of {result.files_read} data files were read, and the rows of {by_spark} "
        "partitions by Spark" + ("" if by_spark else ": those bytes vouch for the rows")
    )


def render_reproduce(page: TextPage, result: proof.ReproduceResult) -> None:
    """Draw what came out again; partitions that differ come first."""
    verdict = "came out as it was accepted" if result.equal else "did NOT come out as accepted"
    page.line(f"{result.run_id} {verdict}", "bold")
    page.records(
        "partitions", "partition | equal | accepted | again",
        sorted(result.partitions, key=lambda one: bool(one.equal)),
        most=50, equal=lambda one: _OUTCOMES[one.equal],
    )  # fmt: skip
    for note in result.notes:
        page.line(note)


def render_audit_guarantees(page: TextPage, result: proof.AuditGuaranteesResult) -> None:
    """Draw what was sampled of each product, and what held."""
    page.line("all guarantees hold" if result.held else "a guarantee does NOT hold", "bold")
    page.records(
        "sampled", "product | run: run_id | chunk: chunk_id | why this one: because",
        result.sampled, most=50,
        run_id=lambda one: one.run_id or "none", chunk_id=lambda one: one.chunk_id or "none",
    )  # fmt: skip
    _check_table(page, result.checks, "product | name")


def _check_table(
    page: TextPage, checks: Sequence[StoredCheck | proof.GuaranteeCheck], names: str
) -> None:
    found = sorted(checks, key=lambda one: (False, None, True).index(one.ok))
    page.records(
        "checks", f"{names} | ok | because", found, most=100, ok=lambda one: _OUTCOMES[one.ok]
    )


_OUTCOMES = {True: "yes", False: "NO", None: "not comparable"}


_WHICH_RUN = "product | run: run_id"
_SWAP = (
    "table | snapshot: snapshot_id | files in: files_added | files out: files_removed | "
    "rows in: rows_added | rows out: rows_removed | seconds"
)

_NO_SWAP = "table | snapshot: snapshot_id"


def render_publish(page: TextPage, result: publications.PublishResult) -> None:
    """Draw what became visible."""
    if result.was_published:
        page.line(f"was published version {result.version} before; nothing was changed", "bold")
        page.facts(read_fields(result, _WHICH_RUN))
    else:
        page.line(f"published version {result.version}", "bold")
        supersedes = format_identity(result.supersedes)
        # Without a swap (a pointer, events) no file of the table was replaced: zeros say nothing.
        shown = _SWAP if result.attempts else _NO_SWAP
        page.facts((*read_fields(result, f"{_WHICH_RUN} | {shown}"), ("supersedes", supersedes)))
    _post_publish_table(page, result)
    ask_for_note(page, result.note_command)
    page.next_command(next_command(result))


def render_publish_preview(page: TextPage, result: publications.PublishPreviewResult) -> None:
    """Draw what would become visible."""
    if result.was_published:
        page.line(f"is published version {result.version} already; nothing would change", "bold")
    else:
        page.line(f"would be published version {result.version}; nothing was changed", "bold")
    page.facts(read_fields(result, f"{_WHICH_RUN} | partitions | table"))
    if not result.was_published:
        page.next_command(command_line("publish", result.run_id))


def render_publish_together(page: TextPage, result: publications.PublishTogetherResult) -> None:
    """Draw the runs that readers see, and which of them this command found so."""
    if all(one.was_published for one in result.published):
        page.line("all were published before; nothing was changed", "bold")
    page.records(
        "readers see", f"{_GROUP_COLUMNS} | published: was_published", result.published,
        was_published=lambda one: "before" if one.was_published else "now",
    )  # fmt: skip


_GROUP_COLUMNS = "product | run: run_id | output version: version | snapshot: snapshot_id"


def _post_publish_table(page: TextPage, result: publications.PublishResult) -> None:
    """Draw the checks and hooks that followed, each with how it ended."""
    from lakehouse_backfill.core.runs import gate_registry

    rows: list[tuple[str, str, str, str]] = [
        ("check", gate_registry.check_title(check), gate_registry.find_verdict(check), check.detail)
        for check in result.checks_after or ()
    ]
    rows += [
        (f"hook {call.on}", call.hook, "done" if call.is_ok else "FAILED", call.detail)
        for call in result.hooks or ()
    ]
    page.table("around it", ("what", "name", "ended", "detail"), rows)


def render_rollback(page: TextPage, result: publications.RollbackResult) -> None:
    """Draw what came back."""
    page.line(f"rolled back to version {result.version}", "bold")
    facts = read_fields(
        result, f"product | partitions | {_SWAP} | reason", reason=lambda one: one.reason or None
    )
    page.facts(facts)
    _columns_stay(page, result.columns_stay)
    _messages_lost(page, result.messages_lost)
    page.next_command(command_line("versions", result.product))


def render_rollback_preview(page: TextPage, result: publications.RollbackPreviewResult) -> None:
    """Draw what would come back."""
    page.line(f"would be rolled back to version {result.version}; nothing was changed", "bold")
    shown = (
        "product | partitions that change: partitions | as they would be already: unchanged | "
        "runs undone: runs_undone | runs that readers get again: runs_reinstated"
    )
    page.facts(
        read_fields(
            result, shown,
            partitions=lambda one: format_partitions(one.partitions),
            unchanged=lambda one: format_partitions(one.unchanged) if one.unchanged else None,
            runs_reinstated=lambda one: one.runs_reinstated or None,
        )
    )  # fmt: skip
    for item in result.rewritten:
        page.line(f"rewritten: {format_partitions(item.partitions)}, because {item.because}")
    _columns_stay(page, result.columns_stay)
    _messages_lost(page, result.messages_lost)
    page.next_command(command_line("versions", result.product))


def _columns_stay(page: TextPage, columns: Sequence[str] | None) -> None:
    """Say that rows go back, and columns do not."""
    if columns:
        page.line(f"columns stay: {', '.join(columns)}; old rows read null in new columns")


def _messages_lost(page: TextPage, lost: Sequence[str] | None) -> None:
    """Say that rows come back, and messages do not."""
    for text in lost or ():
        page.line(f"messages: {text}")


def render_rollback_together(page: TextPage, result: publications.RollbackTogetherResult) -> None:
    """Draw the products that were rolled back by one commit, or would."""
    page.records(
        "rolled back by one commit", _GROUP_COLUMNS, result.rolled_back,
        run_id=lambda _: None,
        snapshot_id=lambda one: format_identity(getattr(one, "snapshot_id", None)),
    )  # fmt: skip
    for one in result.rolled_back:
        _messages_lost(page, one.messages_lost)


def render_versions(page: TextPage, result: publications.VersionsResult) -> None:
    """Draw the accepted versions, newest first."""
    page.records(
        result.product,
        ": is_accepted | version | action | run: run_id | snapshot: snapshot_id | "
        "accepted at: accepted_at | by: accepted_by | partitions",
        result.versions,
        most=50,
        is_copied=True,
        is_accepted=lambda row: Text("now" if row.is_accepted else "", style=GOOD),
        version=lambda row: format_identity(row.version),
        partitions=lambda row: row.partitions,
    )


def render_evidence(page: TextPage, result: publications.EvidenceResult) -> None:
    """Draw where the page and the archive lie."""
    page.facts(read_fields(result, "page: report | archive | all runs: index"))


_RETENTION_COLUMNS = "kind | name | owner | until | because"


def render_maintain(page: TextPage, result: publications.MaintainResult) -> None:
    """Draw what was removed, what is kept and why, and what is left to clean up."""
    if not result.retired and not result.deleted:
        page.line("nothing is to be removed; nothing was changed")
    title = "would be removed; nothing was changed" if result.dry_run else "removed"
    page.records(title, _RETENTION_COLUMNS, result.retired, most=50)
    page.records("kept", _RETENTION_COLUMNS, result.kept, most=50)
    title = "would be deleted" if result.dry_run else "deleted"
    page.records(
        f"files of runs never published: {title}",
        "run: run_id | shadow | files | bytes: size_bytes | kept: a table lists them: kept_files",
        result.deleted,
        most=50,
    )
    page.records(
        "files left",
        "shadow | bytes: size_bytes | because | what to do: fix | or, in Spark: command",
        result.left,
        most=None,
        is_copied=True,
    )
