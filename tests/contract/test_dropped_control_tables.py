"""A control table that was dropped, emptied or lost a column is not read as if it had no rows.

Each command on a lake without each of them: tests/chaos/test_damage_table.py.
"""

from __future__ import annotations

import json

import pytest

from tests.chaos.lab import BY, TARGET, Lab
from tests.support.lakes.verified import CONTROL, empty_control_table

pytestmark = pytest.mark.req("O4", "C2")
#: Their rows are missed by the log of runs, or by the seal over it.
TABLES_WITH_ROWS = (
    "run_event", "pipeline_run", "accepted_output_version", "evidence", "backfill_chunk_run",
)  # fmt: skip


def test_nothing_is_changed_without_a_control_table(lab: Lab) -> None:
    name = "run_event"
    with lab.opened() as catalog:
        catalog.drop_table((CONTROL, name))
    before = lab.oracle.state()
    for words in (
        ("status",),
        ("status", lab.run),
        ("rollback", TARGET, "--reason", "x", *BY),
        ("publish", lab.run, *BY),
        ("plan", lab.manifest("next.yaml", "2024-01-05", "2024-01-06"), *BY),
        ("recover", "--all"),
    ):
        said = lab.do(*words)
        if said.code == 0:  # the list of runs reads no row of the table
            assert words[0] == "status"
            assert words == ("status",) or f"{CONTROL}.{name} is gone" in said.said
            continue
        assert (said.code, f"{CONTROL}.{name} is gone" in said.error["problem"]) == (3, True), words
    assert lab.oracle.state() == before


@pytest.mark.parametrize("name", TABLES_WITH_ROWS)
def test_an_emptied_control_table_is_found_by_the_audit(lab: Lab, name: str) -> None:
    empty_control_table(lab, name)
    said = lab.do("audit", "verify")
    assert said.code == 3
    assert json.loads(said.said)["data"]["first_bad"]


@pytest.mark.parametrize("column", ["reason", "manifest_hash", "partitions"])
def test_a_dropped_column_is_named(lab: Lab, column: str) -> None:
    with lab.opened() as catalog:
        plans = catalog.load_table((CONTROL, "pipeline_run"))
        plans.update_schema().delete_column(column).commit()
    for words in (("audit", "verify"), ("verify", lab.run)):
        said = lab.do(*words)
        assert said.code == 3
        assert f"pipeline_run has lost its columns {column}" in said.error["problem"]
