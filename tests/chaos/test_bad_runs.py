"""A run whose shadow cannot be read is named by `recover --all`; the others are recovered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import Kill
from tests.chaos.lab import BY, Lab

CUT_OFF = Kill("ControlLog.backfill_chunk_run:committing")


def _metadata_file(lab: Lab, run: str) -> Path:
    with lab.opened() as catalog:
        name = f"lakehouse_backfill_shadow.t__{run.replace('-', '_')}"
        return Path(catalog.load_table(name).metadata_location.removeprefix("file://"))


@pytest.mark.req("C2", "X9")
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_a_run_that_cannot_be_read_does_not_stop_the_recovery_of_another(
    lab: Lab, both: bool
) -> None:
    lab.restore("staging cut off")
    manifest = lab.manifest("second.yaml", "2024-01-05", "2024-01-07")
    second = lab.must("plan", manifest, *BY).data["run_id"]
    lab.must("approve", second, *BY)
    lab.killed("stage", second, *BY, hook=CUT_OFF)
    bad = [lab.run, second] if both else [lab.run]
    files = {run: _metadata_file(lab, run) for run in bad}
    whole = {run: file.read_bytes() for run, file in files.items()}
    for file in files.values():
        file.write_bytes(b"garbage" * 50)

    ended = lab.do("recover", "--all", *BY)
    assert (ended.code, ended.error["code"]) == (5, "outcome-unknown"), ended
    assert ended.error["fix"].endswith("recover --all")
    states = {run: lab.must("status", run).data["runs"][0]["state"] for run in (lab.run, second)}
    assert states == {lab.run: "staging", second: "staging" if both else "failed"}
    for file in files.values():
        assert file.name in ended.said
    assert "everything is kept" in ended.error["state"]

    for run, file in files.items():
        file.write_bytes(whole[run])
    done = lab.must("recover", "--all", *BY).data["actions"]
    assert {one["subject"]: one["is_done"] for one in done} == dict.fromkeys(bad, True)
    for run in (lab.run, second):
        lab.must("run", run, *BY)
