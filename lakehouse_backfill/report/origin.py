"""What the result was made from, and what proves that this page tells of that very run."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.lineage_picture import picture
from lakehouse_backfill.report.markup import NOTHING, Markup, join, moment, tag, whole
from lakehouse_backfill.report.meanwhile import meanwhile
from lakehouse_backfill.report.parts import Column, code, facts, folded, section, table

#: Characters of a job's code on the page; the archive holds all.
MAX_CODE = 60_000


def lineage(dossier: Dossier) -> Markup:
    """Draw the way from the pinned inputs to the target, then list pins and identifiers."""
    return section(
        "lineage",
        "Where it comes from",
        picture(dossier),
        _pins(dossier),
        meanwhile(dossier),
        _code(dossier),
    )


def _pins(dossier: Dossier) -> Markup:
    heads = (
        Column("Input", is_wide=True), Column("Role", is_word=True),
        Column("Kept by", is_word=True), Column("Asked for", is_wide=True),
        Column("Snapshot", is_wide=True),
        Column("Rows read at most", is_wide=True),
    )  # fmt: skip
    return table(heads, [_pin(pin) for pin in dossier.plan.resolved.sources])


def _pin(pin: SourcePin) -> tuple[Any, ...]:
    rows = "the whole snapshot"
    if pin.range is not None:
        rows = (
            f"{pin.range.column} from {_day(pin.range.from_)} to {_day(pin.range.to)}, "
            "not included; "
            f"{pin.warm_up_days} days before and {pin.cool_down_days} after each chunk"
        )
    return (pin.name, pin.role, pin.mode, code(pin.requested), code(pin.snapshot_id), rows)


def _day(value: object) -> str:
    return str(value).removesuffix(" 00:00:00")


def _code(dossier: Dossier) -> Markup:
    """Fold the job's code in, as far as the page has room."""
    parts, room = [], MAX_CODE
    for item in dossier.code:
        text = str(item.get("text", ""))
        shown, room = text[:room], room - min(room, len(text))
        cut = f" Only {len(shown):,} of {len(text):,} characters; the archive holds all."
        note = tag("p", "SHA-256 ", code(item.get("sha256")), cut if len(shown) < len(text) else "")
        body = tag("pre", tag("code", whole(shown)))
        parts.append(folded(f"Code: {item.get('file', NOTHING)}", note, body))
    return join(parts)


def identity(dossier: Dossier) -> Markup:
    """List what identifies the run, its input, its code and its result."""
    plan, resolved = dossier.plan, dossier.plan.resolved
    base = resolved.target.snapshot_id
    pairs: list[tuple[str, Any]] = [
        ("Run", code(plan.run_id)),
        ("Planned", f"{moment(plan.created_at)} by {plan.created_by}"),
        ("Supersedes run", code(plan.revises) if plan.revises else "no other run"),
        ("Run manifest", code(plan.manifest_file)),
        ("Manifest hash", code(plan.manifest_hash)),
        ("Code hash", code(resolved.code_hash)),
        ("Git commit", code(resolved.git_commit) if resolved.git_commit else "no repository"),
        ("Lock file hash", code(resolved.lock_hash) if resolved.lock_hash else "no lock file"),
        ("Target when planned", code(base) if base is not None else "empty"),
        ("Way of committing", f"{plan.way.way}: {plan.way.why}" if plan.way else "not recorded"),
        ("Digest of checks and diff", code(dossier.validation_digest)),
        *_published(dossier),
    ]
    if dossier.chain_head:
        pairs.append(("Head of the event chain", code(dossier.chain_head)))
    lead = "Two pages with the same hashes tell of the same intent, code, input and result."
    return section("identity", "Identity", tag("p", lead), facts(pairs))


def _published(dossier: Dossier) -> list[tuple[str, Any]]:
    publication = dossier.publication
    if publication is None:
        return [("Published", "no")]
    version, before = publication.version, publication.supersedes
    return [
        ("Published", f"{moment(publication.at)} by {publication.by}"),
        ("Output version", f"{version}, in place of {NOTHING if before is None else before}"),
        ("Snapshot published", code(publication.snapshot_id)),
        ("Publication token", code(publication.token)),
    ]
