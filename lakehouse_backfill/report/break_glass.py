"""The way back in PyIceberg and Spark SQL, without this toolkit.

The way back in plain PyIceberg, for the day on which this toolkit cannot be run.

The way back in Spark SQL, for the day on which this toolkit cannot be run.

What to type to check the page or to take the run back, with the toolkit and without it.
"""

from __future__ import annotations

import shlex
from datetime import date, datetime
from string import ascii_letters, digits

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import Bound, RowRange, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import (
    Markup,
    code_text,
    command_block,
    html_tag,
    join,
    page_section,
)

#: More ranges than this make no program that a person would read before running it.
MAX_RANGES = 50
#: The same for the length of the values that name them.
MAX_CHARACTERS = 10_000


def pyiceberg_program(publication: Publication) -> list[str] | None:
    """Return the program's lines; None when there is nothing that a person would read.

    One commit to the catalog: the rows of the run's partitions are replaced by those of the
    snapshot from before, also where there were none.
    """
    ranges = readable_ranges(publication)
    if ranges is None:
        return None
    predicates = [_predicate(rows) for rows in ranges]
    which = predicates[0] if len(predicates) == 1 else _any_predicate(predicates)
    return [
        "from pyiceberg.catalog import load_catalog",
        "from pyiceberg.expressions import (",
        "    And, EqualTo, GreaterThanOrEqual, IsNull, LessThan, Or)",
        "",
        'catalog = load_catalog("NAME")  # the properties stand in catalog/profiles.yaml',
        f"table = catalog.load_table({publication.table!r})",
        f"restated = {which}",
        *_restore_lines(publication.before_snapshot_id),
    ]


def readable_ranges(publication: Publication) -> tuple[RowRange, ...] | None:
    """Return the rows to put back; None when nothing was published, or too many to be read."""
    if publication.action != "publish" or publication.scope is None:
        return None
    ranges = partitions.scope_row_ranges(publication.scope)
    size = sum(len(str(rows.equals)) for rows in ranges)
    return ranges if len(ranges) <= MAX_RANGES and size <= MAX_CHARACTERS else None


def _any_predicate(predicates: list[str]) -> str:
    return "Or(\n    " + ",\n    ".join(predicates) + ")"


def _restore_lines(before: int | None) -> list[str]:
    if before is None:
        return ["table.delete(restated)  # there were no rows before"]
    return [
        f"old = table.scan(restated, snapshot_id={int(before)}).to_arrow()",
        "table.overwrite(old, overwrite_filter=restated)",
    ]


def _predicate(rows: RowRange) -> str:
    if rows.is_null:
        return f"IsNull({rows.column!r})"
    if rows.equals is not None:
        return f"EqualTo({rows.column!r}, {_python_literal(rows.equals)})"
    sides = []
    if rows.lower is not None:
        sides.append(f"GreaterThanOrEqual({rows.column!r}, {_python_literal(rows.lower)})")
    if rows.upper is not None:
        sides.append(f"LessThan({rows.column!r}, {_python_literal(rows.upper)})")
    return sides[0] if len(sides) == 1 else f"And({', '.join(sides)})"


def _python_literal(value: Bound) -> str:
    """Times as ISO text, which PyIceberg reads; everything as a Python literal, never as code."""
    if isinstance(value, (date, datetime)):
        return repr(value.isoformat())
    return repr(value)


#: Characters that mean the same to the parser, to the `spark-sql` shell, which replaces `${…}`
#: even inside quotes, and to a terminal. All others are written as escapes.
_SAFE_CHARACTERS = frozenset(ascii_letters + digits + " _.,:+-/=()[]<>@#%&*!?|")


def sql_statements(publication: Publication) -> list[str] | None:
    """Return the lines of the statements; None when there is nothing that a person would read.

    One commit: the rows of the run's partitions are replaced by those of the snapshot from before,
    also where there were none. A dynamic overwrite would leave partitions as they are for which
    the old snapshot holds no row.
    """
    ranges = readable_ranges(publication)
    if ranges is None or publication.scope is None:
        return None
    table = ".".join(quote_identifier(part) for part in publication.table.split("."))
    condition = sql_condition(publication.scope.field, ranges)
    catalog = ["-- NAME: the catalog, as your Spark session calls it", "USE NAME;"]
    first = [*catalog, f"REFRESH TABLE {table};"]
    before = publication.before_snapshot_id
    if before is None:
        # S608: all names and values are quoted above, and nothing here runs the text.
        delete = f"DELETE FROM {table}"  # noqa: S608
        return [*first, "-- there were no rows before", delete, f"WHERE {condition};"]
    return [
        *first,
        "-- goes by position: when columns were moved since, use the PyIceberg program",
        f"INSERT INTO {table}",
        f"REPLACE WHERE {condition}",
        f"SELECT * FROM {table} VERSION AS OF {int(before)}",  # noqa: S608
        f"WHERE {condition};",
    ]


def sql_condition(field: ScopeField, ranges: tuple[RowRange, ...]) -> str:
    """Return the condition that holds for exactly the rows of the ranges."""
    name = quote_identifier(field.column)
    single = [rows.equals for rows in ranges if rows.equals is not None]
    parts = [_range_condition(field, rows) for rows in ranges if rows.equals is None]
    if len(single) == 1:
        parts.append(f"{name} = {sql_literal(field, single[0])}")
    elif single:
        parts.append(f"{name} IN ({', '.join(sql_literal(field, value) for value in single)})")
    return "\n  OR ".join(parts)


def _range_condition(field: ScopeField, rows: RowRange) -> str:
    name = quote_identifier(field.column)
    if rows.is_null:
        return f"{name} IS NULL"
    sides = []
    if rows.lower is not None:
        sides.append(f"{name} >= {sql_literal(field, rows.lower)}")
    if rows.upper is not None:
        sides.append(f"{name} < {sql_literal(field, rows.upper)}")
    return f"({' AND '.join(sides)})"


def quote_identifier(name: str) -> str:
    """Quote an identifier, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def sql_literal(field: ScopeField, value: Bound) -> str:
    """Write a typed literal; instants carry their zone, so the session's zone does not matter."""
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind} '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, int):
        return f"{value}L" if field.type == "long" else str(value)
    return "'" + "".join(_escape_character(character) for character in value) + "'"


def _escape_character(character: str) -> str:
    if character in _SAFE_CHARACTERS:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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
    back = [dossier.safety_summary.next_command]
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
    if not dossier.is_first_load or dossier.run.state is not RunState.PUBLISHED:
        return Markup("")
    text = "Nothing was there before the run: any way back leaves these partitions empty again."
    return html_tag("p", text)


def _manual_rollback(dossier: Dossier) -> Markup:
    publication = dossier.publication
    if publication is None:
        return html_tag("p", "The run was not published: there is nothing to take back.")
    if dossier.run.state is RunState.ROLLED_BACK:
        now = "the old partitions are there already"
        if dossier.is_first_load:
            now = "the partitions are empty again, as before"
        return html_tag("p", f"The run was rolled back: {now}.")
    if dossier.plan.resolved.contract.publication == "pinned":
        return _pinned_rollback(dossier, publication)
    return _rollback_programs(dossier, publication)


def _pinned_rollback(dossier: Dossier, publication: Publication) -> Markup:
    """Describe what to read: of a pinned product, no table was changed."""
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
    return ".".join(quote_identifier(part) for part in table.split("."))


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
        pyiceberg_program(publication),
        sql_statements(publication),
    )
    if python is None or sql is None:
        count = len(dossier.plan.resolved.scope.partitions)
        text = (
            f"The {count:,} partitions make no program that a person would read before running it: "
            "they are listed in the archive under publication, scope. Replace the rows of these "
            "partitions by those of the snapshot from before."
        )
        return join([lead, html_tag("p", text)])
    return join(
        [
            lead,
            *_rollback_effects(dossier),
            html_tag("h4", "PyIceberg"),
            command_block(python),
            html_tag("h4", "Spark SQL"),
            command_block(sql),
        ]
    )


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
