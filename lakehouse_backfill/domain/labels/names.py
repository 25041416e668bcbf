"""Names of tables and columns: how they are written as text, whatever characters they hold.

The text of a table is its namespaces and its name with dots between. A part that is no plain
identifier stands in backticks, a backtick inside of it twice, as in Spark SQL: silver.`my orders`.
A table has one such text, so texts are compared in place of tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: A part in backticks, or one without any; a dot or the end follows.
_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))(\.|\Z)")
#: Characters that nobody sees, and those that a store takes for the end of a folder's name.
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_UNUSABLE = re.compile(rf"{_INVISIBLE.pattern}|[/\\]")
#: Spark replaces this by a setting, also between backticks.
_VARIABLE = "${"
_MAX_TABLE_NAME, _MAX_PRODUCT_NAME, _MAX_PLAIN_NAME, _MAX_COLUMN = 400, 200, 64, 255
#: Columns that Iceberg's readers add to those of a table.
_METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"}
    | {"_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id"}
)
_OWN_COLUMNS = ("lhb_", "_lhb")


def quote_identifier(name: str) -> str:
    """Quote one identifier for Spark SQL; any character is allowed."""
    return "`" + name.replace("`", "``") + "`"


def is_plain(name: str) -> bool:
    """Return whether a name needs no quoting: ASCII letters, digits and _, no digit first."""
    return _PLAIN.fullmatch(name) is not None


def is_product_name(text: str) -> bool:
    """Return whether a text is `namespace.name` of plain identifiers: products name files."""
    levels = text.split(".")
    return len(levels) > 1 and len(text) <= _MAX_PRODUCT_NAME and all(map(is_plain, levels))


def table_text(parts: Iterable[str]) -> str:
    """Return the text of a table, or of a namespace, from its parts."""
    return ".".join(part if is_plain(part) else quote_identifier(part) for part in parts)


class BadTableName(ValueError):
    """A text that names no table: people write `namespace.table`."""


def table_parts(text: str) -> tuple[str, ...]:
    """Return the namespaces and the name of a table, or the parts of a namespace.

    Parts without dots and backticks may stand without quotes. Raises BadTableName for another text.
    """
    parts: list[str] = []
    end, more = 0, True
    while more:
        found = _PART.match(text, end)
        if found is None:
            raise BadTableName(f"{text!r} is not namespace.table")
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        end, more = found.end(), bool(found[3])
    if end != len(text):
        raise BadTableName(f"{text!r} is not namespace.table")
    return tuple(parts)


def normal_table_text(text: str) -> str:
    """Return the one text of the table that `text` names; raise BadTableName when it names none."""
    parts = table_parts(text)
    found = table_text(parts)
    if len(parts) < 2 or len(found) > _MAX_TABLE_NAME:
        raise BadTableName(f"{text!r} is not namespace.table, or longer than {_MAX_TABLE_NAME}")
    for part in parts:
        if _UNUSABLE.search(part) or part in (".", "..") or part != part.strip():
            raise ValueError(
                f"{part!r} cannot be part of a table's name: it holds a slash, an invisible "
                "character or a space at an end, or is the name of a folder above"
            )
        if _VARIABLE in part:
            raise ValueError(f"{part!r} holds {_VARIABLE}, which Spark replaces by a setting")
    return found


def unusable_columns(columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the columns that no run can read, each with the reason."""
    seen: dict[str, str] = {}
    for name in columns:
        twin = seen.setdefault(name.casefold(), name)
        if twin != name:
            yield name, f"differs from {twin!r} only by the case of letters, which Spark ignores"
        elif _INVISIBLE.search(name) or len(name) > _MAX_COLUMN:
            yield name, f"holds invisible characters, or is longer than {_MAX_COLUMN}"
        elif name.casefold() in _METADATA_COLUMNS or name.casefold().startswith(_OWN_COLUMNS):
            yield name, "has the name of a column that Iceberg or this toolkit adds to rows"


def is_table_text(text: str) -> bool:
    """Return whether this is the one text of a table."""
    try:
        return normal_table_text(text) == text
    except ValueError:
        return False


def last_part(table: str) -> str:
    """Return the name of a table without its namespaces, and without quotes."""
    return table_parts(table)[-1]


def namespace_text(table: str) -> str:
    """Return the text of a table's namespace; empty for a name without one."""
    return table_text(table_parts(table)[:-1])


def plain_name(name: str) -> str:
    """Return a plain identifier that reminds of a name; names that differ may have the same."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name, flags=re.ASCII)[:_MAX_PLAIN_NAME]
    return text if is_plain(text) else f"_{text}"[:_MAX_PLAIN_NAME]


def unique_plain_name(name: str) -> str:
    """Return a plain identifier that no other name has; that of a plain name is the name."""
    if is_plain(name):
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain_name(name)[:40]}_{mark}"


def plain_table_text(table: str) -> str:
    """Return `namespace.table` of plain identifiers only; that of a plain name is the name."""
    return ".".join(part if is_plain(part) else plain_name(part) for part in table_parts(table))


def with_suffix(table: str, suffix: str) -> str:
    """Return the text of a table in the same namespace whose name goes on with the suffix."""
    *namespaces, name = table_parts(table)
    return table_text((*namespaces, name + suffix))
