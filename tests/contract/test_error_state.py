"""An error that interrupts a command says what the command has committed before."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.lab import BY, TARGET, Lab
from tests.support.lakes.verified import published


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    found = published(tmp_path_factory.mktemp("state"))
    found.must("rollback", TARGET, "--reason", "x", *BY)
    found.save("rolled back")
    return found


def fail(at: str, point: str) -> None:
    """Fail by an error that nobody expects, when the point is reached."""
    if point == at:
        raise RuntimeError("the disk is on fire")


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "kept"),
    [
        ("ControlLog.run_event:committing", ("nothing was changed",)),
        ("ControlLog.evidence:committing", ("accepted_output_version", "Publisher.swap")),
    ],
)
def test_what_had_landed_before_an_error_is_named(
    lab: Lab, point: str, kept: tuple[str, ...]
) -> None:
    lab.restore("rolled back")
    said = lab.do("publish", lab.run, *BY, hook=partial(fail, point))
    assert said.code != 0
    state = said.error["state"]
    assert all(name in state for name in kept), state
    lab.must("recover", lab.run)
    lab.must("publish", lab.run, *BY)
    assert lab.must("audit", "verify").data["intact"]


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_shown_is_no_traceback(
    lab: Lab, options: tuple[str, ...], target: str
) -> None:
    lab.restore("rolled back")
    program = Path(sys.executable).parent / "lakehouse-backfill"
    words = [str(program), "--project", str(lab.folder), *options, "versions", TARGET]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {target}', "bash", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    assert "Traceback" not in done.stderr
    assert "the command has ended, but its result is not shown: stdout" in done.stderr
