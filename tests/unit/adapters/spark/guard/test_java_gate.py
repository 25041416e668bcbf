"""A line of a job calls no Java, whatever name leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

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
