"""What the result was made from, and what to type to check it or to take it back."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.model.plan import SourcePin
from lakehouse_backfill.report import charts
from lakehouse_backfill.report.break_glass import steps
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import Markup, join, moment, tag
from lakehouse_backfill.report.parts import Column, code, commands, facts, section, table


def lineage(dossier: Dossier) -> Markup:
    """Draw the way from the pinned inputs to the target, then list pins and identifiers."""
    return section(
        "lineage", "Where it comes from", _picture(dossier), _pins(dossier), _identifiers(dossier)
    )


def _picture(dossier: Dossier) -> Markup:
    resolved, publication = dossier.plan.resolved, dossier.publication
    transform = resolved.manifest.transform
    inputs = [tag("div", code(f"{pin.table}@{pin.snapshot_id}")) for pin in resolved.sources]
    rows = sum(chunk.output_rows for chunk in dossier.chunks)
    reached = f"version {publication.version}" if publication else "not published"
    boxes = (
        _box("Pinned inputs", *inputs),
        _box("Transform", tag("div", transform.name, " ", transform.version), code(transform.file)),
        _box("Shadow table", code(dossier.plan.shadow_table), tag("div", f"{rows:,} rows")),
        _box("Target", code(resolved.target.table), tag("div", reached)),
    )
    parts: list[Markup] = [boxes[0]]
    for box in boxes[1:]:
        parts += [tag("span", charts.arrow(), class_="arrow"), box]
    return tag("figure", tag("div", *parts, class_="flow"))


def _box(title: str, *lines: Markup) -> Markup:
    return tag("div", tag("b", title), *lines, class_="box")


def _pins(dossier: Dossier) -> Markup:
    heads = (
        Column("Input", is_wide=True), Column("Role"), Column("Kept by"),
        Column("Asked for", is_wide=True), Column("Snapshot", is_wide=True),
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


def _identifiers(dossier: Dossier) -> Markup:
    plan, resolved = dossier.plan, dossier.plan.resolved
    base = resolved.target.snapshot_id
    pairs: list[tuple[str, Any]] = [
        ("Run", code(plan.run_id)),
        ("Planned", f"{moment(plan.created_at)} by {plan.created_by}"),
        ("Revises", code(plan.revises) if plan.revises else "no other run"),
        ("Run manifest", code(plan.manifest_file)),
        ("Manifest hash", code(plan.manifest_hash)),
        ("Code hash", code(resolved.code_hash)),
        ("Git commit", code(resolved.git_commit) if resolved.git_commit else "no repository"),
        ("Lock file hash", code(resolved.lock_hash) if resolved.lock_hash else "no lock file"),
        ("Target when planned", code(base) if base is not None else "empty"),
        ("Digest of checks and diff", code(dossier.validation_digest)),
    ]
    if dossier.publication:
        pairs.append(("Snapshot published", code(dossier.publication.snapshot_id)))
        pairs.append(("Publication token", code(dossier.publication.token)))
    return join([tag("h3", "Identifiers"), facts(pairs)])


def next_steps(dossier: Dossier) -> Markup:
    """List the commands that check this page, and the way back with and without the toolkit."""
    run_id, product = dossier.run.run_id, dossier.plan.product
    lines = [
        f"lakehouse-backfill status {run_id}",
        f"lakehouse-backfill log {run_id}",
        f"lakehouse-backfill diff {run_id}",
        f"lakehouse-backfill versions {product}",
    ]
    back = [dossier.standing.next_command]
    if dossier.publication:
        back.append(f"lakehouse-backfill rollback {product} --reason TEXT --dry-run")
    return section(
        "next",
        "Check it, or take it back",
        tag("p", "Check what stands here against the lake:"),
        commands(lines),
        tag("p", "Next, from the state that the run has now:"),
        commands(back),
        _break_glass(dossier),
    )


def _break_glass(dossier: Dossier) -> Markup:
    publication = dossier.publication
    title = tag("h3", "Without this toolkit")
    if publication is None:
        return join([title, tag("p", "The run was not published: there is nothing to take back.")])
    if dossier.plan.resolved.contract.publication == "pinned":
        text = "Readers resolve the pointer; no table was changed, so none has to be changed back."
        return join([title, tag("p", text)])
    tag_name = f"lhb-before-{publication.token[:12]}"
    lead = tag(
        "p",
        "The state before the publication is snapshot ",
        code(publication.before_snapshot_id),
        " of ",
        code(publication.table),
        ", kept by the tag ",
        code(tag_name),
        f"; the published state is snapshot {publication.snapshot_id}. Tags keep both readable.",
    )
    warning = tag(
        "p",
        "This rewrites the restated partitions only; live writes elsewhere stay, live writes in "
        "these partitions are replaced. The control tables do not learn of it, so record it.",
    )
    found = steps(publication)
    if found is None:
        return join([title, lead])
    return join([title, lead, warning, commands(found)])
