"""Compiled templates are kept where Python keeps the bytecode of modules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from lakehouse_backfill.report.html import render
print(render("omitted.html", run_id="bf-1"))
"""


@pytest.mark.parametrize(
    ("variables", "kept"), [({}, True), ({"PYTHONDONTWRITEBYTECODE": "1"}, False)]
)
def test_templates_are_kept_unless_the_user_keeps_no_bytecode(tmp_path, variables, kept) -> None:
    usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ = {**usual, "PYTHONPYCACHEPREFIX": str(tmp_path), **variables}
    command = [sys.executable, "-c", PROGRAM]
    first, again = (
        subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == again
    assert [path.suffix for path in tmp_path.rglob("*.template")] == [".template"] * kept
