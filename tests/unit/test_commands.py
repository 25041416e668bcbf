"""Printed commands can be copied into a shell as they are."""

from __future__ import annotations

import shlex

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.evidence.status import summarise_safety
from lakehouse_backfill.domain.run import RunState

FILE = "my jobs/o'brien; rm -rf $HOME.yaml"


def test_a_shell_reads_exactly_the_words_that_were_meant() -> None:
    line = errors.plan_command(FILE, "bf-1")
    assert shlex.split(line) == ["lakehouse-backfill", "plan", FILE, "--revise", "bf-1"]


def test_a_file_is_never_read_as_an_option() -> None:
    assert errors.plan_command("--x.yaml") == "lakehouse-backfill plan ./--x.yaml"


@pytest.mark.parametrize("state", [RunState.HALTED, RunState.REJECTED, RunState.CANCELLED])
def test_what_to_type_next_names_the_run_manifest_of_the_run(state: RunState) -> None:
    line = summarise_safety(state, "bf-1", "silver.a", manifest_file=FILE).next_command
    assert shlex.split(line)[1:3] == ["plan", FILE]
