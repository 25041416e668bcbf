"""Lines, facts and tables that fit the width of the terminal, whatever the values hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lakehouse_backfill.cli.group import clean_text
from lakehouse_backfill.command_lines import DEFAULT_INVOCATION, Invocation

#: Where nobody says how wide the reader's screen is, as in a pipe or a log file.
DEFAULT_WIDTH = 110
#: To measure what a table would take if it could.
_ANY_WIDTH = 10_000
#: Rows of a long table that are shown.
MAX_SHOWN_ROWS = 20
GOOD, BAD, WEAK, STRONG = "green", "bold red", "dim", "bold"


class _Console(Console):
    """Lets the program end as it wants when the reader goes away; rich would end it with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class TextPage:
    """Draws on one stream. Markup and control characters in values are shown, never obeyed."""

    def __init__(self, stream: TextIO, invocation: Invocation = DEFAULT_INVOCATION) -> None:
        """Take the width of the terminal, or a fixed one where there is none."""
        self.stream = stream
        self._invocation = invocation
        width = None if stream.isatty() or "COLUMNS" in os.environ else DEFAULT_WIDTH
        self._console = _Console(
            file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False
        )

    def draw(self, what: RenderableType, *, is_whole: bool = False) -> None:
        """Write something rich can draw; a `is_whole` line is never broken, so it can be copied."""
        with self._console.capture() as drawn:
            self._console.print(what, soft_wrap=is_whole)
        lines = (line.rstrip() for line in drawn.get().splitlines())
        self.stream.write("".join(f"{line}\n" for line in lines))

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line."""
        self.draw(Text(clean_text(self._invocation.complete(text)), style=style))

    def facts(self, facts: Iterable[tuple[str, Any]]) -> None:
        """Write `name  value` lines; facts that are None are left out."""
        there = [(name, value) for name, value in facts if value is not None]
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style=WEAK, no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in there:
            grid.add_row(clean_text(name), format_cell(value))
        if there:
            self.draw(grid)

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        most: int | None = MAX_SHOWN_ROWS,
        is_copied: bool = False,
    ) -> None:
        """Write a table of at most `most` rows, and how many more there are.

        `is_copied`: its ids are typed again, so where the table does not fit, rows become lists.
        """
        if not rows:
            return
        if title:
            self.line()
            self.line(title, STRONG)
        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style=WEAK)
        shown = rows if most is None else rows[:most]
        for number, name in enumerate(columns):
            is_number = all(isinstance(row[number], int | float | None) for row in shown)
            drawn.add_column(
                clean_text(name), justify="right" if is_number else "left", overflow="fold"
            )
        for row in shown:
            drawn.add_row(*(format_cell(value) for value in row))
        wide = self._console.options.update(max_width=_ANY_WIDTH)
        if is_copied and self._console.measure(drawn, options=wide).maximum > self._console.width:
            self._row_lists(columns, shown)
        else:
            self.draw(drawn)
        if len(rows) > len(shown):
            self.line(f"… {len(rows) - len(shown):,} more (--json shows all)", WEAK)

    def records(
        self,
        title: str,
        columns: str,
        records: Iterable[Any],
        /,
        *,
        most: int | None = MAX_SHOWN_ROWS,
        is_copied: bool = False,
        **cells: Callable[[Any], Any],
    ) -> None:
        """Write a table with a row for each record; `columns` and `cells` as in `read_fields`."""
        rows = [read_fields(record, columns, **cells) for record in records]
        names = [name for name, _ in rows[0]] if rows else []
        values = [[value for _, value in row] for row in rows]
        self.table(title, names, values, most=most, is_copied=is_copied)

    def _row_lists(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        for number, row in enumerate(rows):
            if number:
                self.line()
            self.facts(zip(columns, row, strict=True))

    def other_command(self, label: str, command: str) -> None:
        """Write a command that may be typed instead, on a line of its own that can be copied."""
        whole = clean_text(self._invocation.complete(command))
        self.draw(Text(f"{label}: {whole}"), is_whole=True)

    def next_command(self, command: str | None) -> None:
        """Write what to type next, on a line of its own that can be copied."""
        if command:
            self.line()
            self.line("next:", WEAK)
            whole = clean_text(self._invocation.complete(command))
            self.draw(Text(f"  {whole}", style=STRONG), is_whole=True)


def read_fields(
    record: Any, columns: str, /, **cells: Callable[[Any], Any]
) -> list[tuple[str, Any]]:
    """Return the fields of a record with their titles.

    `columns` is written like the head of a table: `version | accepted at: accepted_at`. Behind the
    colon stands the name of the field, where the title is another one. A function in `cells` makes
    the value of its field from the record; other values are written as `_FORMATS` says.
    """
    found = []
    for column in columns.split(" | "):
        title, _, name = column.rpartition(": ") if ": " in column else (column, "", column)
        found.append((title.strip(), _field_value(record, name, cells.get(name))))
    return found


def _field_value(record: Any, name: str, cell: Callable[[Any], Any] | None) -> Any:
    if cell is not None:
        return cell(record)
    value = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    is_written = name in _FORMATS and value is not None
    return _FORMATS[name](value) if is_written else value


def format_cell(value: Any) -> Text:
    """Draw a value: numbers with separators, yes and no, nothing as a dash."""
    if value is None:
        return Text("-", style=WEAK)
    if isinstance(value, Text):
        return value
    write = next((write for kind, write in _WRITERS if isinstance(value, kind)), clean_text)
    return Text(write(value))


def _join_nested(value: Any) -> str:
    from lakehouse_backfill.domain.serialization import show_nested

    return clean_text(show_nested(value)) or "-"


#: How a value of this type is written; the first that fits.
_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "yes" if value else "no"),
    (int, "{:,}".format),
    (float, lambda value: f"{value:,.3f}".rstrip("0").rstrip(".")),
    (datetime, lambda value: str(format_moment(value))),
    (Enum, lambda value: clean_text(value.value)),
    (Mapping, _join_nested),
    (list, _join_nested),
    (tuple, _join_nested),
)


def relative_path(path: str) -> str:
    """Return a path as it can be typed where the reader is."""
    try:
        return Path(path).relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path


def format_identity(identity: Any) -> Text:
    """Draw an id or version: a number that nobody adds up, so without separators."""
    return Text("-" if identity is None else clean_text(identity))


def verdict_mark(*, is_good: bool) -> Text:
    """Draw a verdict in words, so that it can be read without colour."""
    return Text("ok", style=GOOD) if is_good else Text("FAIL", style=BAD)


def format_size(count: Any) -> str | None:
    """Describe bytes in the largest unit that fits; None stays unknown."""
    if not isinstance(count, int | float):
        return None
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:,.1f} {units[0]}" if units[0] != "B" else f"{amount:,.0f} B"


def format_moment(value: Any) -> Text:
    """Draw an instant to the second: `2026-03-01 12:00:00Z`."""
    text = clean_text(value) if value else "-"
    head, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789")
    return Text(f"{head}{zone}".replace("T", " ").replace("+00:00", "Z"))


def format_partitions(labels: Sequence[Any]) -> str:
    """Describe which partitions: all of a few, else how many and the first and last."""
    if len(labels) <= 3:
        return ", ".join(str(label) for label in labels) or "none"
    return f"{len(labels):,} partitions, {labels[0]} to {labels[-1]}"


def shorten_hash(value: Any) -> str:
    """Hashes are recognised by their first letters; nobody reads all 64."""
    text = "-" if value is None else str(value)
    is_hash = len(text) >= 32 and " " not in text
    return f"{text[:12]}…{text[-8:]}" if is_hash else text


#: How a field of this name is written in every table.
_FORMATS: dict[str, Callable[[Any], Any]] = {
    "at": format_moment,
    "bound_to": shorten_hash,
    "checksum": shorten_hash,
    "partitions": format_partitions,
    "seq": format_identity,
    "size_bytes": format_size,
    "snapshot_id": format_identity,
    "supersedes": format_identity,
}
