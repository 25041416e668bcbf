"""Sections, tables and lists of the evidence page, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.report.markup import Markup, escape_uncut, format_number, html_tag, join

#: Rows of a table on the page, and the bytes of HTML that they may take; the archive holds all.
MAX_TABLE_ROWS, MAX_TABLE_BYTES = 200, 120_000
#: A longer word or number may be cut into lines.
_LONG_WORD = 24


@dataclass(frozen=True)
class TableColumn:
    """A table column: its heading, and what it holds.

    Numbers stand at the right; what is wide gets a whole line on a phone; a word is never cut.
    """

    title: str
    is_number: bool = False
    is_wide: bool = False
    is_word: bool = False


def page_section(anchor: str, title: str, *children: Any) -> Markup:
    """Make a section with a heading that can be linked to."""
    return html_tag("section", html_tag("h2", title), *children, id=anchor)


def page_table(columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]]) -> Markup:
    """Make a table; on a narrow screen each row becomes a card with its own labels."""
    head = html_tag(
        "tr",
        *(
            html_tag("th", column.title, scope="col", class_=_css_class(column))
            for column in columns
        ),
    )
    body: list[Markup] = []
    size = 0
    for row in rows[:MAX_TABLE_ROWS]:
        cells = (_table_cell(column, value) for column, value in zip(columns, row, strict=True))
        body.append(html_tag("tr", *cells))
        size += len(body[-1].encode())
        if size > MAX_TABLE_BYTES:
            break
    made = html_tag("table", html_tag("thead", head), html_tag("tbody", *body))
    return join([made, omitted_rows_note(len(rows) - len(body))])


def omitted_rows_note(count: int) -> Markup:
    """Say how many rows are only in the archive."""
    if count <= 0:
        return Markup("")
    return html_tag("p", f"{count:,} more rows are in the archive.", class_="soft small")


def _css_class(column: TableColumn, text: str = "") -> str | None:
    is_long = len(text) > _LONG_WORD and (column.is_number or column.is_word)
    kinds = (
        ("n", column.is_number),
        ("wide", column.is_wide),
        ("word", column.is_word),
        ("long", is_long),
    )
    names = [name for name, wanted in kinds if wanted]
    return " ".join(names) or None


def _table_cell(column: TableColumn, value: Any) -> Markup:
    shown = format_number(value) if column.is_number and not isinstance(value, Markup) else value
    text = "" if isinstance(shown, Markup) else str(shown)
    return html_tag("td", shown, data_label=column.title, class_=_css_class(column, text))


def fact_list(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Make a list of names and values."""
    return html_tag(
        "dl", *(join([html_tag("dt", name), html_tag("dd", value)]) for name, value in pairs)
    )


def folded_details(title: str, *children: Any) -> Markup:
    """Make a part that opens on a click; printing shows it."""
    return html_tag("details", html_tag("summary", title), *children)


def verdict_mark(*, good: bool, yes: str = "passed", no: str = "failed") -> Markup:
    """Say good or bad with a symbol, a word and a colour, in this order of importance."""
    if good:
        return html_tag("span", f"✓ {yes}", class_="mark good")
    return html_tag("span", f"✗ {no}", class_="mark bad")


def code_text(text: Any) -> Markup:
    """Set a short technical text."""
    return html_tag("code", text)


def command_block(lines: Iterable[str]) -> Markup:
    """Set commands or code, one a line, uncut."""
    return html_tag("pre", html_tag("code", escape_uncut("\n".join(lines))))
