"""A line of a job calls no Java, whatever name leads there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.guard.java_gate import _calls_java
from tests.support.spark.guarded import FILE, try_lines

_JAVA = "__import__('py4j.java_gateway').java_gateway"


@pytest.mark.req("T6")
def test_a_job_calls_no_java(tmp_path: Path) -> None:
    lines = [
        f"(held={_JAVA}.JavaMember.__new__({_JAVA}.JavaMember)): held()",
        f"(held={_JAVA}.JavaObject.__new__({_JAVA}.JavaObject)): getattr(held, 'get' + 'Class')",
        f"(held={_JAVA}.JVMView.__new__({_JAVA}.JVMView)): held.java",
    ]
    found = try_lines(tmp_path, lines)
    assert [one.sinks for one in found] == [{"Java"}] * 3
    assert [one.places[0] for one in found] == [(FILE, 1), (FILE, 2), (FILE, 3)]


#: Methods of Java with their arguments, and whether they ask for a function that calls Java.
ASKED = (
    ("reflect", (), True),
    ("call_function", (" `System`.`REFLECT`", None), True),
    ("call_function", ("lower", None), False),
    ("expr", ("1 + length(Reflect ('a', 'b'))",), True),
    ("expr", ("reflect /* ( */ ('a', 'b')",), True),
    ("expr", ("concat('/*', reflect -- (\n ('a', 'b'), '*/')",), True),
    ("expr", ("IDENTIFIER(concat('re', 'flect'))('a', 'b')",), True),
    ("expr", ("IDENTIFIER('k') + (1)",), False),
    ("expr", ("reflection('a') + my_reflect('b') + reflect",), False),
    ("toSeq", (["k", "java_method('a', 'b')"],), True),
    ("lit", ("reflect (on it)",), False),
)


@pytest.mark.req("T6")
@pytest.mark.parametrize(("name", "arguments", "is_refused"), ASKED)
def test_a_function_that_calls_java_is_known_by_whatever_text_asks_for_it(
    name: str, arguments: tuple[Any, ...], is_refused: bool
) -> None:
    assert _calls_java(name, arguments) is is_refused
