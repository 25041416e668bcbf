"""Escaped HTML; sections, tables, lists.

HTML that cannot be injected into: every text is escaped, unless it was made here.

Sections, tables and lists of the evidence page, readable on a phone and on paper.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

#: Longer values are cut on the page; the archive beside it holds them whole.
MAX_TEXT = 400
#: A decimal with more places than this is rounded.
_MAX_DECIMALS = 6
#: Stands for a value that is not there.
NO_VALUE = "–"  # noqa: RUF001 (a dash)
VOID_TAGS = frozenset({"meta", "rect", "path", "line", "br"})


class Markup(str):
    """Finished HTML, made by `tag` or `join` only."""

    __slots__ = ()


def escape(value: Any) -> Markup:
    """Return `value` as escaped text; finished HTML is passed through."""
    if isinstance(value, Markup):
        return value
    text = NO_VALUE if value is None else str(value)
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
    return Markup(_escape_html(text))


def escape_uncut(text: str) -> Markup:
    """Return `text` escaped and uncut: for code that people copy."""
    return Markup(_escape_html(text))


def show_invisible(text: str) -> str:
    """Write out each character that a reader could not see, or that turns what stands around it.

    A text that reads from right to left, or is cut by a control character, would show something
    else than what is there: in a name, a reason, or the job's code.
    """
    if text.isprintable():
        return text
    return "".join(map(_show_character, text.replace("\r\n", "\n")))


def _show_character(one: str) -> str:
    # Spaces of other widths are no control characters, though Python does not print them.
    if one.isprintable() or one in "\n\t" or unicodedata.category(one) == "Zs":
        return one
    return f"\\u{ord(one):04x}" if ord(one) <= 0xFFFF else f"\\U{ord(one):08x}"


def _escape_html(text: str) -> str:
    return html.escape(show_invisible(text), quote=True)


def shorten(text: str, length: int) -> str:
    """Cut a text to at most `length` characters, and show that it was cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def join(parts: Iterable[Any]) -> Markup:
    """Set parts side by side, each escaped."""
    return Markup("".join(escape(part) for part in parts))


def html_tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Make one element; `class_` gives class, `data_label` gives data-label.

    An attribute that is None or False is left out, one that is True has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID_TAGS and not children:
        return Markup(f"<{name}{written}>" if name in ("meta", "br") else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escape_html(str(value))}"'


def format_number(value: Any) -> str:
    """Write a number with thousands separated; other values as they are."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Decimal):
        digits = value.normalize().as_tuple().exponent
        if isinstance(digits, int) and -_MAX_DECIMALS <= digits <= _MAX_DECIMALS:
            return f"{value:,f}"
        value = float(value)
    # %g turns to powers of ten from a million on, where money still wants its digits.
    return f"{value:,.2f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def format_signed(value: float | Decimal) -> str:
    """Write a change with its sign, with a true minus."""
    text = format_number(abs(value))
    if value == 0:
        return "±0"
    return f"+{text}" if value > 0 else f"−{text}"  # noqa: RUF001 (a minus, not a hyphen)


def format_percent(part: float | Decimal, of: float | Decimal) -> str:
    """Write `part` of `of` in per cent."""
    if not of:
        return NO_VALUE
    percent = 100 * float(part) / float(of)
    text = f"{percent:.1f} %" if abs(percent) >= 0.1 or percent == 0 else f"{percent:.2g} %"
    return text.replace("-", "−", 1) if percent < 0 else text  # noqa: RUF001 (a minus)


def format_moment(value: datetime | str) -> str:
    """Write an instant to the second, in UTC."""
    at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


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
    """Describe how many rows are only in the archive."""
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
    """Mark good or bad with a symbol, a word and a colour, in this order of importance."""
    if good:
        return html_tag("span", f"✓ {yes}", class_="mark good")
    return html_tag("span", f"✗ {no}", class_="mark bad")


def code_text(text: Any) -> Markup:
    """Set a short technical text."""
    return html_tag("code", text)


def command_block(lines: Iterable[str]) -> Markup:
    """Set commands or code, one a line, uncut."""
    return html_tag("pre", html_tag("code", escape_uncut("\n".join(lines))))
