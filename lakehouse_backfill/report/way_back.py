"""What to type to check the page or to take the run back, with the toolkit and without it."""

from __future__ import annotations

import shlex

from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report import break_glass, break_glass_sql
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.markup import Markup, html_tag, join
from lakehouse_backfill.report.parts import code_text, command_block, page_section


def next_steps_section(dossier: Dossier) -> Markup:
    """List the commands that check this page, and the way back with and without the toolkit."""
    run_id, product = shlex.quote(dossier.run.run_id), shlex.quote(dossier.plan.product)
    lines = [
        f"lakehouse-backfill status {run_id}",
        f"lakehouse-backfill log {run_id}",
        f"lakehouse-backfill diff {run_id}",
        f"lakehouse-backfill versions {product}",
        "lakehouse-backfill audit verify",
    ]
    back = [dossier.standing.next_command]
    if dossier.run.state is RunState.PUBLISHED:
        back.insert(0, f"lakehouse-backfill rollback {product} --reason TEXT --dry-run")
    return page_section(
        "next",
        "Check it, or take it back",
        html_tag("p", "Check what stands here against the lake:"),
        command_block(lines),
        html_tag("p", "Next, from the state that the run has now:"),
        command_block(back),
        _empty_before_note(dossier),
        html_tag("h3", "Break glass: without this toolkit"),
        _manual_rollback(dossier),
    )


def _empty_before_note(dossier: Dossier) -> Markup:
    if not dossier.is_first or dossier.run.state is not RunState.PUBLISHED:
        return Markup("")
    text = "Nothing was there before the run: any way back leaves these partitions empty again."
    return html_tag("p", text)


def _manual_rollback(dossier: Dossier) -> Markup:
    publication = dossier.publication
    if publication is None:
        return html_tag("p", "The run was not published: there is nothing to take back.")
    if dossier.run.state is RunState.ROLLED_BACK:
        now = "the old partitions are there already"
        if dossier.is_first:
            now = "the partitions are empty again, as before"
        return html_tag("p", f"The run was rolled back: {now}.")
    if dossier.plan.resolved.contract.publication == "pinned":
        return _pinned_rollback(dossier, publication)
    return _rollback_programs(dossier, publication)


def _pinned_rollback(dossier: Dossier, publication: Publication) -> Markup:
    """Say what to read: of a pinned product, no table was changed."""
    before = dossier.plan.resolved.target
    pointer = "The accepted version is a row of the control table, which only says what to read."
    if before.snapshot_id is None:
        words = html_tag("p", pointer, " There was nothing to read before this run.")
        return join([words, _current_snapshot(publication)])
    lines = [
        "# PyIceberg",
        f"catalog.load_table({before.table!r}).scan(snapshot_id={before.snapshot_id})",
        "-- Spark SQL",
        f"SELECT * FROM {_quote_table(before.table)} VERSION AS OF {before.snapshot_id};",  # noqa: S608 (quoted; shown, not run)
    ]
    return join(
        [
            html_tag("p", pointer, " No table was changed, so none has to be changed back."),
            _current_snapshot(publication),
            html_tag("p", "Before this run they read this; let them read it again:"),
            command_block(lines),
            html_tag(
                "p", "The pointer itself still names this run until it is rolled back with it."
            ),
        ]
    )


def _current_snapshot(publication: Publication) -> Markup:
    return html_tag("p", "Readers read ", code_text(publication.table), " at snapshot ",
               code_text(publication.snapshot_id), " now.")  # fmt: skip


def _quote_table(table: str) -> str:
    return ".".join(break_glass_sql.quote_identifier(part) for part in table.split("."))


def _rollback_programs(dossier: Dossier, publication: Publication) -> Markup:
    before = publication.before_snapshot_id
    was: list[object] = ["The table had no row before the publication."]
    if before is not None:
        was = [
            "The state before the publication is snapshot ", code_text(before), " of ",
            code_text(publication.table), ", kept by the tag ",
            code_text(f"lhb-before-{publication.token[:12]}"), ".",
        ]  # fmt: skip
    lead = html_tag("p", *was, f" The published state is snapshot {publication.snapshot_id}.")
    python, sql = (
        break_glass.pyiceberg_program(publication),
        break_glass_sql.sql_statements(publication),
    )
    if python is None or sql is None:
        count = len(dossier.plan.resolved.scope.partitions)
        text = (
            f"The {count:,} partitions make no program that a person would read before running it: "
            "they are listed in the archive under publication, scope. Replace the rows of these "
            "partitions by those of the snapshot from before."
        )
        return join([lead, html_tag("p", text)])
    return join([lead, *_rollback_effects(dossier), html_tag("h4", "PyIceberg"), command_block(python),
                 html_tag("h4", "Spark SQL"), command_block(sql)])  # fmt: skip


def _rollback_effects(dossier: Dossier) -> list[Markup]:
    texts = [
        "Use one of the two. Each is one commit: it replaces the rows of the restated partitions "
        "by those of the snapshot from before, and empties partitions that had none. Live writes "
        "elsewhere stay; live writes in these partitions since the publication are replaced.",
        "The rows are written anew. The control tables do not learn of it: record who did it and "
        "why, and plan the next run of these partitions anew.",
    ]
    if dossier.plan.resolved.target.format_version == 3:
        texts.append("The table has format version 3, which PyIceberg may not write: use the SQL.")
    return [html_tag("p", text) for text in texts]
