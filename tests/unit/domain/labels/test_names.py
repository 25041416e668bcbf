"""Texts of tables: one for each table, whatever its name holds, and quoted for Spark's parser."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.tables.branch_shadow import (
    branch_shadow,
    parse_branch_shadow,
    shadow_of_branch,
)
from lakehouse_backfill.domain.tables.table import TableRef

HOSTILE = st.text(
    st.one_of(st.characters(exclude_categories=("Cs", "Cc")), st.sampled_from("`.\"'@ ${};-/\\")),
    min_size=1,
    max_size=12,
)
#: Parts that a catalog can have: no path, nothing that nobody sees, nothing that Spark replaces.
PARTS = HOSTILE.filter(lambda part: _is_usable(part))
#: Spark's lexer: BACKQUOTED_IDENTIFIER, and the dots of multipartIdentifier between.
_SPARK = re.compile(r"`((?:[^`]|``)*)`(?:\.|\Z)")


def _is_usable(part: str) -> bool:
    try:
        names.normal_table_text(names.table_text(("n", part)))
    except ValueError:
        return False
    return True


def read_as_spark_does(text: str) -> list[str]:
    """Give the parts that Spark's parser finds in a quoted name; the rule is that of its lexer."""
    parts, end = [], 0
    while end < len(text):
        found = _SPARK.match(text, end)
        assert found is not None, text[end:]
        parts.append(found[1].replace("``", "`"))
        end = found.end()
    return parts


@pytest.mark.req("U16")
@given(parts=st.lists(HOSTILE, min_size=1, max_size=4))
def test_quoted_names_are_read_back_as_they_are(parts: list[str]) -> None:
    assert read_as_spark_does(".".join(map(names.quote_identifier, parts))) == parts


@pytest.mark.req("U16")
@given(parts=st.lists(PARTS, min_size=2, max_size=4))
def test_a_table_has_one_text_from_which_its_parts_come_back(parts: list[str]) -> None:
    text = names.table_text(parts)
    assert names.table_parts(text) == tuple(parts)
    assert names.normal_table_text(text) == text
    assert names.normal_table_text(".".join(map(names.quote_identifier, parts))) == text
    assert names.last_part(text) == parts[-1]
    assert names.namespace_text(text) == names.table_text(parts[:-1])
    assert names.table_parts(names.with_suffix(text, "_v2"))[-1] == f"{parts[-1]}_v2"


@pytest.mark.req("U16")
@given(one=st.lists(PARTS, min_size=2, max_size=3), other=st.lists(PARTS, min_size=2, max_size=3))
def test_two_tables_have_two_texts(one: list[str], other: list[str]) -> None:
    assert (names.table_text(one) == names.table_text(other)) is (one == other)


@pytest.mark.req("U16")
@given(name=HOSTILE, other=HOSTILE)
def test_what_becomes_part_of_a_path_is_plain_and_no_other_names(name: str, other: str) -> None:
    assert names.is_plain(names.plain_name(name))
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", names.unique_plain_name(name), re.ASCII)
    same = names.unique_plain_name(name) == names.unique_plain_name(other)
    assert same is (name == other)


@pytest.mark.req("U16")
@given(parts=st.lists(PARTS, min_size=2, max_size=3), at=st.none() | st.text(min_size=1))
def test_a_reference_behind_a_table_is_told_from_its_name(parts: list[str], at: str | None) -> None:
    text = names.table_text(parts)
    assert TableRef.parse(text if at is None else f"{text}@{at}") == TableRef(table=text, at=at)


@pytest.mark.req("U16")
@given(parts=st.lists(PARTS, min_size=2, max_size=3))
def test_a_branch_of_a_table_is_found_by_its_name(parts: list[str]) -> None:
    shadow = branch_shadow(names.table_text(parts), "bf-20260101-abc")
    assert parse_branch_shadow(shadow.name) == shadow
    assert shadow_of_branch(shadow.target, shadow.branch(2)) == shadow


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("silver.orders", "silver.orders"),
        ("`silver`.`orders`", "silver.orders"),
        ("silver.my orders", "silver.`my orders`"),
        ("silver.2024-orders", "silver.`2024-orders`"),
        ("silver.`a.b`", "silver.`a.b`"),
        ("a.b.c", "a.b.c"),
    ],
)
def test_a_name_is_written_in_one_way(text: str, normal: str) -> None:
    assert names.normal_table_text(text) == normal
    assert names.is_table_text(text) is (text == normal)


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    "text",
    ["", "silver", "a.", ".a", "a..b", "a.`b", "a.``", "a.b`c", "a.`b`c", "a.`../x`", "a.`b\tc`",
     "a.`..`", "a.`b\\c`", "a.` b`", "a.`${env:HOME}`", "a." + "x" * 400],
)  # fmt: skip
def test_what_names_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"namespace\.table|cannot be part|holds"):
        names.normal_table_text(text)
