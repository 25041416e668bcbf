"""What the result was made from, and what proves that this page tells of that very run."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.lineage_picture import lineage_figure
from lakehouse_backfill.report.markup import (
    NO_VALUE,
    Markup,
    escape_uncut,
    format_moment,
    html_tag,
    join,
)
from lakehouse_backfill.report.meanwhile import live_commits_section
from lakehouse_backfill.report.parts import (
    TableColumn,
    code_text,
    fact_list,
    folded_details,
    page_section,
    page_table,
)

#: Characters of a job's code on the page; the archive holds all.
MAX_CODE_CHARACTERS = 60_000


def lineage_section(dossier: Dossier) -> Markup:
    """Draw the way from the pinned inputs to the target, then list pins and identifiers."""
    return page_section(
        "lineage",
        "Where it comes from",
        lineage_figure(dossier),
        _pins(dossier),
        live_commits_section(dossier),
        _job_code(dossier),
    )


def _pins(dossier: Dossier) -> Markup:
    heads = (
        TableColumn("Input", is_wide=True), TableColumn("Role", is_word=True),
        TableColumn("Kept by", is_word=True), TableColumn("Asked for", is_wide=True),
        TableColumn("Snapshot", is_wide=True),
        TableColumn("Rows read at most", is_wide=True),
    )  # fmt: skip
    return page_table(heads, [_pin(pin) for pin in dossier.plan.resolved.sources])


def _pin(pin: SourcePin) -> tuple[Any, ...]:
    rows = "the whole snapshot"
    if pin.range is not None:
        rows = (
            f"{pin.range.column} from {_day_text(pin.range.from_)} to {_day_text(pin.range.to)}, "
            "not included; "
            f"{pin.warm_up_days} days before and {pin.cool_down_days} after each chunk"
        )
    return (
        pin.name,
        pin.role,
        pin.mode,
        code_text(pin.requested),
        code_text(pin.snapshot_id),
        rows,
    )


def _day_text(value: object) -> str:
    return str(value).removesuffix(" 00:00:00")


def _job_code(dossier: Dossier) -> Markup:
    """Fold the job's code in, as far as the page has room."""
    parts, room = [], MAX_CODE_CHARACTERS
    for item in dossier.code:
        text = str(item.get("text", ""))
        shown, room = text[:room], room - min(room, len(text))
        cut = f" Only {len(shown):,} of {len(text):,} characters; the archive holds all."
        note = html_tag(
            "p", "SHA-256 ", code_text(item.get("sha256")), cut if len(shown) < len(text) else ""
        )
        body = html_tag("pre", html_tag("code", escape_uncut(shown)))
        parts.append(folded_details(f"Code: {item.get('file', NO_VALUE)}", note, body))
    return join(parts)


def identity_section(dossier: Dossier) -> Markup:
    """List what identifies the run, its input, its code and its result."""
    plan, resolved = dossier.plan, dossier.plan.resolved
    base = resolved.target.snapshot_id
    pairs: list[tuple[str, Any]] = [
        ("Run", code_text(plan.run_id)),
        ("Planned", f"{format_moment(plan.created_at)} by {plan.created_by}"),
        ("Supersedes run", code_text(plan.revises) if plan.revises else "no other run"),
        ("Run manifest", code_text(plan.manifest_file)),
        ("Manifest hash", code_text(plan.manifest_hash)),
        ("Code hash", code_text(resolved.code_hash)),
        ("Git commit", code_text(resolved.git_commit) if resolved.git_commit else "no repository"),
        ("Lock file hash", code_text(resolved.lock_hash) if resolved.lock_hash else "no lock file"),
        ("Target when planned", code_text(base) if base is not None else "empty"),
        ("Way of committing", f"{plan.way.way}: {plan.way.why}" if plan.way else "not recorded"),
        ("Digest of checks and diff", code_text(dossier.validation_digest)),
        *_publication_facts(dossier),
    ]
    if dossier.chain_head:
        pairs.append(("Head of the event chain", code_text(dossier.chain_head)))
    lead = "Two pages with the same hashes tell of the same intent, code, input and result."
    return page_section("identity", "Identity", html_tag("p", lead), fact_list(pairs))


def _publication_facts(dossier: Dossier) -> list[tuple[str, Any]]:
    publication = dossier.publication
    if publication is None:
        return [("Published", "no")]
    version, before = publication.version, publication.supersedes
    return [
        ("Published", f"{format_moment(publication.at)} by {publication.by}"),
        ("Output version", f"{version}, in place of {NO_VALUE if before is None else before}"),
        ("Snapshot published", code_text(publication.snapshot_id)),
        ("Publication token", code_text(publication.token)),
    ]
