"""The templates of the evidence page, and how values are written in them.

Jinja2 escapes every value. Numbers, moments and long texts are written the same in all sections.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from lakehouse_backfill.domain.serialization import show_nested

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from jinja2.bccache import Bucket

#: Longer values are cut on the page; the archive beside it holds them whole.
MAX_TEXT = 400
#: A decimal with more places than this is rounded.
_MAX_DECIMALS = 6
#: Stands for a value that is not there.
NO_VALUE = "–"  # noqa: RUF001 (a dash)
#: Rows of a table on the page, and the bytes of HTML that they may take; the archive holds all.
MAX_TABLE_ROWS, MAX_TABLE_BYTES = 200, 120_000
#: Fields of one example, and the length of each, on the page; the archive holds them whole.
MAX_FIELDS, MAX_FIELD_LENGTH = 12, 120
#: A longer word or number may be cut into lines.
_LONG_WORD = 24


def render(template: str, **values: Any) -> Markup:
    """Return a template filled with values; each is escaped unless a template made it."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 (escaped)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from lakehouse_backfill.core.runs.gate_registry import gate_question
    from lakehouse_backfill.domain.partitions import describe_labels

    environment = Environment(
        loader=PackageLoader("lakehouse_backfill.report"),
        bytecode_cache=_bytecode_cache(),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "percent": format_percent,
        "signed": format_signed,
        "moment": format_moment,
        "shorten": shorten,
        "breakable": allow_breaks,
        "labels": lambda labels: describe_labels(tuple(labels)),
        "uncut": escape,
        "named": _join_named,
        "field": _field_text,
        "or_dash": lambda value: value or NO_VALUE,
    }
    environment.globals |= {
        "table": PageTable,
        "max_fields": MAX_FIELDS,
        "gate_question": gate_question,
    }
    return environment


def _bytecode_cache() -> BytecodeCache | None:
    """Keep compiled templates beside this module's own bytecode, or nowhere if nobody may write.

    To compile them takes longer than the rest of a page. A template that changed is compiled anew.
    """
    from jinja2 import FileSystemBytecodeCache

    class Cache(FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            # A full disk costs time, not the page.
            with suppress(OSError):
                super().dump_bytecode(bucket)

    folder = Path(cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return Cache(str(folder), f"%s.{sys.implementation.cache_tag}.template")


def _shown(value: Any) -> Any:
    """Return what a template shows of a value: a dash for None, the start of a long text."""
    if hasattr(value, "__html__"):
        return value
    text = NO_VALUE if value is None else str(value)
    return f"{text[:MAX_TEXT]}… ({len(text):,} characters)" if len(text) > MAX_TEXT else text


def _join_named(values: Mapping[str, Any], separator: str = ", ", *, numbers: bool = False) -> str:
    """Write names with their values, those without a value left out."""
    pairs = [(name, value) for name, value in values.items() if value]
    return separator.join(
        f"{name} {format_number(value) if numbers else show_nested(value)}" for name, value in pairs
    )


def _field_text(value: Any) -> str:
    """Write a field of an example, cut to its length."""
    text = "null" if value is None else str(value)
    if len(text) <= MAX_FIELD_LENGTH:
        return text
    return f"{shorten(text, MAX_FIELD_LENGTH)} ({len(text):,} characters)"


def show_invisible(text: str) -> str:
    """Write out each character that a reader could not see, or that turns what stands around it.

    A text that reads from right to left, or is cut by a control character, would show something
    else than what is there: in a name, a reason, or the job's code.
    """
    # Spaces of other widths are no control characters, though Python does not print them.
    hidden = {
        ord(one): f"\\u{ord(one):04x}" if ord(one) <= 0xFFFF else f"\\U{ord(one):08x}"
        for one in set(text)
        if not one.isprintable() and one not in "\n\t" and unicodedata.category(one) != "Zs"
    }
    return text.replace("\r\n", "\n").translate(hidden)


#: A name is broken into lines behind one of these; a longer part without any breaks anywhere.
_BREAKS = re.compile(r"(?<=[._])(?<!\d\.)(?=[^._\s])")
_MIN_BREAKABLE, _MAX_UNBROKEN = 13, 24


def allow_breaks(value: Any) -> Markup:
    """Let a name be broken into lines behind its dots and underscores, and nowhere else.

    Parts that no line could hold are broken anywhere all the same.
    """
    text = str(_shown(value))
    words = re.split(r"(\s+)", text)
    return Markup("").join(map(_breakable_word, words))


def _breakable_word(word: str) -> Markup:
    # Addresses and paths have no such parts.
    is_name = len(word) >= _MIN_BREAKABLE and "/" not in word
    parts = _BREAKS.split(word) if is_name else [word]
    inner = Markup("<wbr>").join(parts)
    if len(parts) < 2 or max(map(len, parts)) > _MAX_UNBROKEN:
        return inner
    return Markup('<span class="nb">{}</span>').format(inner)


def shorten(text: str, length: int) -> str:
    """Cut a text to at most `length` characters, and show that it was cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


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


class PageTable:
    """A table; on a narrow screen each row becomes a card with its own labels.

    A column is `n` (a number, at the right), `wide` (a whole line on a phone), `word` (never cut),
    or nothing special.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        """Take the titles of the columns, and what each holds."""
        self._columns = columns
        self._rows: list[Markup] = []
        self._size = self._omitted = 0

    def row(self, *values: Any) -> None:
        """Add a row, while the table has room for it."""
        if len(self._rows) == MAX_TABLE_ROWS or self._size > MAX_TABLE_BYTES:
            self._omitted += 1
            return
        pairs = zip(self._columns.items(), values, strict=True)
        cells = Markup("").join(_cell(title, kind, value) for (title, kind), value in pairs)
        self._rows.append(cells)
        self._size += len(f"<tr>{cells}</tr>".encode("utf-8", "backslashreplace"))

    def __html__(self) -> Markup:
        """Return the table, and below it how many rows are in the archive only."""
        return render("table.html", columns=self._columns, rows=self._rows, omitted=self._omitted)


def _cell(title: str, kind: str, value: Any) -> Markup:
    is_plain = not isinstance(value, Markup)
    if kind == "n" and is_plain:
        value = format_number(value)
    if kind in ("n", "word") and is_plain and len(str(value)) > _LONG_WORD:
        kind = f"{kind} long"
    style = Markup(' class="{}"').format(kind) if kind else ""
    shown = allow_breaks(value) if is_plain and isinstance(value, str) else _shown(value)
    return Markup('<td data-label="{}"{}>{}</td>').format(title, style, shown)
