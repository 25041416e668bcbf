"""How much of the package one command walks through; run with -s to see the figures."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from lakehouse_backfill.cli.main import app
from tests.contract.test_stored_lake import PLACE, PRODUCT, StoredLake, stored
from tests.support.call_trace import CallTrace, traced

__all__ = ["stored"]


def command(*words: str) -> CallTrace:
    with traced() as trace:
        done = CliRunner().invoke(app, ["--project", str(PLACE), "--json", *words])
    assert done.exit_code == 0, done.output
    figures = f"{len(trace.files)} files, {len(trace.functions)} functions"
    print(f"{words[0]}: {figures}, {len(trace.longest)} files in a row: {trace.chain()}")  # noqa: T201
    return trace


@pytest.mark.parametrize(
    ("words", "files", "in_a_row"),
    [
        pytest.param(("status", "first"), 67, 13, id="status"),
        pytest.param(("versions", PRODUCT), 36, 10, id="versions"),
        pytest.param(("publish", "validated", "--by", "ana"), 127, 15, id="publish"),
        pytest.param(("rollback", PRODUCT, "--reason", "x", "--by", "ana"), 116, 14, id="rollback"),
    ],
)
def test_a_command_enters_few_files(
    stored: StoredLake,
    words: tuple[str, ...],
    files: int,
    in_a_row: int,
) -> None:
    if words[0] == "publish":
        stored.project.accept(stored.runs["validated"], by="ana")
    trace = command(words[0], stored.runs.get(words[1], words[1]), *words[2:])
    assert len(trace.files) <= files, sorted(trace.files)
    assert len(trace.longest) <= in_a_row, trace.chain()
