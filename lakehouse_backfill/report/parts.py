"""Sections, tables and lists of the evidence page, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.report.markup import Markup, join, number, tag, whole

#: Rows of a table on the page, and the bytes of HTML that they may take; the archive holds all.
MAX_ROWS, MAX_BYTES = 200, 120_000
#: A longer word or number may be cut into lines.
_LONG_WORD = 24


@dataclass(frozen=True)
class Column:
    """A table column: its heading, and what it holds.

    Numbers stand at the right; what is wide gets a whole line on a phone; a word is never cut.
    """

    title: str
    is_number: bool = False
    is_wide: bool = False
    is_word: bool = False


def section(anchor: str, title: str, *children: Any) -> Markup:
    """Make a section with a heading that can be linked to."""
    return tag("section", tag("h2", title), *children, id=anchor)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Markup:
    """Make a table; on a narrow screen each row becomes a card with its own labels."""
    head = tag(
        "tr", *(tag("th", column.title, scope="col", class_=_class(column)) for column in columns)
    )
    body: list[Markup] = []
    size = 0
    for row in rows[:MAX_ROWS]:
        cells = (_cell(column, value) for column, value in zip(columns, row, strict=True))
        body.append(tag("tr", *cells))
        size += len(body[-1].encode())
        if size > MAX_BYTES:
            break
    made = tag("table", tag("thead", head), tag("tbody", *body))
    return join([made, left_out(len(rows) - len(body))])


def left_out(count: int) -> Markup:
    """Say how many rows are only in the archive."""
    if count <= 0:
        return Markup("")
    return tag("p", f"{count:,} more rows are in the archive.", class_="soft small")


def _class(column: Column, text: str = "") -> str | None:
    is_long = len(text) > _LONG_WORD and (column.is_number or column.is_word)
    kinds = (
        ("n", column.is_number),
        ("wide", column.is_wide),
        ("word", column.is_word),
        ("long", is_long),
    )
    names = [name for name, wanted in kinds if wanted]
    return " ".join(names) or None


def _cell(column: Column, value: Any) -> Markup:
    shown = number(value) if column.is_number and not isinstance(value, Markup) else value
    text = "" if isinstance(shown, Markup) else str(shown)
    return tag("td", shown, data_label=column.title, class_=_class(column, text))


def facts(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Make a list of names and values."""
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in pairs))


def folded(title: str, *children: Any) -> Markup:
    """Make a part that opens on a click; printing shows it."""
    return tag("details", tag("summary", title), *children)


def mark(*, good: bool, yes: str = "passed", no: str = "failed") -> Markup:
    """Say good or bad with a symbol, a word and a colour, in this order of importance."""
    if good:
        return tag("span", f"✓ {yes}", class_="mark good")
    return tag("span", f"✗ {no}", class_="mark bad")


def code(text: Any) -> Markup:
    """Set a short technical text."""
    return tag("code", text)


def commands(lines: Iterable[str]) -> Markup:
    """Set commands or code, one a line, uncut."""
    return tag("pre", tag("code", whole("\n".join(lines))))
