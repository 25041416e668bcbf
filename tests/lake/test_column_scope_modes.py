"""Restated columns beside what else a run may be: modes, steps, live commits, trials, causes."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any

import pytest

from lakehouse_backfill.errors import ChecksFailed
from tests.support.lakes.deletes import hide_equal_rows
from tests.support.spark.column_scope import KEYS, OTHERS, Give, asked, expected, seeded
from tests.support.spark.lake import Lake
from tests.support.spark.modes import BY_PARTITION, LakeProject, Modes

pytestmark = [pytest.mark.lake, pytest.mark.long]

NOW = {"safety": {"on_conflict": "catch_up"}}


@pytest.fixture
def give(lake: Lake) -> Give:
    """Give a maker of products of five days with three keys each; the source says v + 1000."""
    return partial(seeded, lake)


@pytest.mark.req("P9", "U2", "U5")
@pytest.mark.parametrize("mode", ["pointer_swap", "versioned"])
def test_a_pinned_product_moves_to_restated_columns(give: Give, mode: str) -> None:
    modes = give(publication="pinned")
    before = modes.rows()
    modes.published(**asked("v", target={"publish_mode": mode}))
    assert modes.rows() == before
    assert _accepted(modes) == expected()


def _accepted(modes: Modes) -> list[Any]:
    """Give the rows that the pointer leads to."""
    frame = modes.lake.spark.table(f"{modes.lake.name}.{modes.accepted()}")
    found = frame.select("d", "k", "tenant", "v", "ver").collect()
    rows = [tuple(cell.day if isinstance(cell, date) else cell for cell in row) for row in found]
    return sorted(rows, key=repr)


@pytest.mark.req("P9")
def test_a_result_to_look_at_is_judged_alike(give: Give) -> None:
    modes = give()
    _, found = modes.validated(**asked("v", target={"publish_mode": "shadow_only"}))
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert (modes.gate(found, OTHERS)[0], modes.gate(found, KEYS)[0]) == (True, True)


@pytest.mark.req("P9", "U6")
def test_columns_are_published_step_by_step(give: Give) -> None:
    modes = give()
    modes.published(**asked("v", target={"progressive": {"partitions_per_step": 1}}))
    assert modes.rows() == expected()


@pytest.mark.req("P9", "U11")
def test_rows_that_came_live_meanwhile_get_the_column_and_keep_the_others(give: Give) -> None:
    modes = give()
    run_id, _ = modes.validated(**asked("v"), **BY_PARTITION, **NOW)
    modes.project.accept(run_id, by="lead")
    modes.holds("3, 7, C, 70, 9")
    modes.source("3, 7, D, 77, 5")
    done = modes.project.publish(run_id, by="lead")
    assert done.run_id != run_id
    assert modes.rows() == sorted([*expected(), (3, 7, "C", 77, 9)], key=repr)


@pytest.mark.req("P9", "E3")
def test_rows_that_were_deleted_live_meanwhile_stay_deleted(give: Give, lake: Lake) -> None:
    modes = give(deletions="reapply")
    run_id, _ = modes.validated(**asked("v"), **BY_PARTITION)
    modes.project.accept(run_id, by="lead")
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-02' AND k = 2")
    # A late row is nothing to a chunk of accepted rows, from which deleted ones are removed.
    modes.source("2, 8, A, 1, 1")
    done = modes.project.publish(run_id, by="lead")
    assert modes.rows() == expected(without=((2, 2),))
    assert modes.project.status(done.run_id).runs[0].state == "published"


@pytest.mark.req("P9", "U12")
@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_delete_files_hide_are_not_resurrected(give: Give, version: int) -> None:
    """Position deletes of format 2 and deletion vectors of format 3, in the run's partitions."""
    modes = give(version)
    modes.lake.sql("ALTER TABLE {ns}.out SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    modes.lake.sql("DELETE FROM {ns}.out WHERE k = 2 AND d < date'2024-01-04'")
    modes.lake.sql("DELETE FROM {ns}.src WHERE k = 2 AND d < date'2024-01-04'")
    run_id, found = modes.validated(**asked("v"))
    assert modes.gate(found, KEYS) == (True, "4 keys, counts and checksums equal")
    modes.publish(run_id)
    assert modes.rows() == expected(without=((1, 2), (2, 2), (3, 2)))


KEYED = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="keyed", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.select("id", (F.col("v") + 1000).alias("v"))
"""


class Keyed(LakeProject):
    """Rows (id, d, v, w), whose key does not hold the column of the partitions."""

    transform = "keyed"

    def __init__(self, lake: Lake, **contract: Any) -> None:
        columns = (("id", "long"), ("d", "date"), ("v", "long"), ("w", "long"))
        super().__init__(lake, KEYED, columns, key=["id"], lineage_columns=False, **contract)
        for short, rule in (("out", "NOT NULL"), ("src", "")):
            lake.sql(
                f"CREATE TABLE {{ns}}.{short} (id bigint {rule}, d date {rule}, v bigint {rule}, "
                f"w bigint {rule}) PARTITIONED BY (d)"
            )
            lake.sql(
                f"INSERT INTO {{ns}}.{short} SELECT id, date_add(date'2024-01-01', "
                "CAST(id % 5 AS int)), id, id FROM range(20)"
            )

    def found(self) -> dict[int, tuple[int, int]]:
        """Give v and w by id."""
        frame = self.lake.spark.table(f"{self.lake.name}.{self.product}")
        return {row["id"]: (row["v"], row["w"]) for row in frame.collect()}


@pytest.mark.req("P9", "D2")
def test_a_job_gives_only_key_and_column_where_the_key_has_no_partition(lake: Lake) -> None:
    """Edges, proofs and chunks find the partition of a computed row by the base's row."""
    keyed = Keyed(lake)
    run_id = keyed.plan(target={"columns": ["v"]}, validation={"edge_partitions": 1})
    proofs = keyed.project.plan(
        "jobs/run.yaml", by="ann", dry_run=True, prove_warm_up=True, prove_determinism=True
    )
    assert proofs.warm_up_proof["equal"]
    assert proofs.determinism_proof["equal"]
    found = keyed.project.run(run_id, "ann").to_dict()
    gates = {check["name"]: (check["passed"], check["detail"]) for check in found["checks"]}
    assert gates[OTHERS][0]
    passed, detail = gates["edges are closed"]
    assert (passed, "rows there would come out with other values" in detail) == (False, True)


@pytest.mark.req("P9", "U12")
def test_rows_that_equality_deletes_hide_stay_hidden(lake: Lake) -> None:
    keyed = Keyed(lake)
    for short in ("out", "src"):
        for hidden in (6, 7):  # of the days 2 and 3
            day = (date(2024, 1, 1 + hidden % 5) - date(1970, 1, 1)).days
            table = lake.catalog.load_table(lake.table(short))
            hide_equal_rows(table, hidden, partition=(day,), spec_id=0)
    run_id = keyed.plan(target={"columns": ["v"]})
    found = keyed.project.run(run_id, "ann").to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    keyed.project.accept(run_id, by="lead")
    keyed.project.publish(run_id, by="lead")
    assert keyed.found() == {
        n: (n + (1000 if n % 5 in (1, 2) else 0), n) for n in range(20) if n not in (6, 7)
    }


@pytest.mark.req("P9", "D5", "X12")
@pytest.mark.parametrize("isolation", ["clone", "branch"])
def test_a_trial_a_reproduction_and_a_verification_know_the_columns(give: Give) -> None:
    modes = give()
    run_id = modes.plan(**asked("v"))
    done = modes.project.try_partition("jobs/run.yaml", "2024-01-03", by="ann")
    assert (done.output_rows, done.passed) == (3, True)
    assert {name for sample in done.diff.samples for name in sample.new or {}} == {"v"}
    modes.project.run(run_id, "ann")
    modes.publish(run_id)
    assert modes.project.reproduce(run_id).equal
    modes.require_intact(run_id)
    modes.plan(**asked("v", gives=("v", "ver")))
    with pytest.raises(ChecksFailed, match=r"another column \(ver in 3\)"):
        modes.project.try_partition("jobs/run.yaml", "2024-01-03", by="ann")


@pytest.mark.req("P9")
def test_causes_of_restated_columns_are_found_by_swapping_one_input(give: Give) -> None:
    """Late rows of an input change the restated column of the rows that are there, no other."""
    modes = give()
    first = modes.published(**asked("v"))
    modes.lake.sql("UPDATE {ns}.src SET v = 5, ver = 77 WHERE d = date'2024-01-02' AND k = 1")
    run_id, _ = modes.validated(**asked("v"))
    found = modes.project.attribute(run_id, samples=100).attribution
    (part,) = found["partitions"]
    assert (part["partition"], part["made_by"], part["changed_rows"]) == ("2024-01-02", first, 1)
    (group,) = part["groups"]
    assert (group["rows"], group["columns"]) == (1, {"v": 1})
    assert group["cause"] == "upstream"
