"""Restatements with known causes on Spark: attribution names what the test did, and nothing else.

The truth is kept by the test itself: which keys of which day it touched, and how.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import LostFile
from tests.support.spark.lake import Lake
from tests.support.spark.modes import Modes

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.req("Q5")

JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="job", version="{version}", inputs=("src", "rates"))
def job(context, src, rates):
    amount = F.col("v") * F.col("rate")
    value = {value}
    return (
        src.join(rates, "tenant").withColumn("v", value.cast("bigint"))
        .where({keep}).select("d", "k", "tenant", "v", "ver")
    )
"""
OLD_CODE = {"version": "1.0.0", "value": "amount", "keep": "F.lit(True)"}
Key = tuple[int, int]
KEYS = range(1, 5)
#: Even keys of tenant B become negative.
NEW_CODE = OLD_CODE | {
    "version": "1.1.0",
    "value": "F.when((F.col('tenant') == 'B') & (F.col('k') % 2 == 0), -amount).otherwise(amount)",
}


class Restated(Modes):
    """A product that a run has published: rows of keys 1 to 4 on each of some days.

    Even keys are of tenant B, the others of A; those of two days are of tenants R and S.
    """

    transform = "job"

    def __init__(self, lake: Lake, days: range) -> None:
        self.version = "1.0.0"
        super().__init__(lake)
        lake.create("rates", (("tenant", "string"), ("rate", "long")))
        lake.append("rates", ("A", 1), ("B", 1), ("R", 1), ("S", 1))
        self.source(*(f"{d}, {k}, {_tenant(d, k)}, {100 * d + k}, 1" for d in days for k in KEYS))
        self.code(OLD_CODE)
        self.maker = self.published(**self.days(days[0], days[-1]))

    def code(self, code: dict[str, str]) -> None:
        """Put the job into the project; it has a version of its own."""
        self.version = code["version"]
        self.lake.job(JOB.format(**code))

    def days(self, first: int, last: int) -> dict[str, Any]:
        """Give what a run of some days says beside what all say."""
        chosen = {"column": "d", "from": f"2024-01-{first:02}", "to": f"2024-01-{last + 1:02}"}
        return {"transform": {"version": self.version}, "target": {"partitions": chosen}}

    def restate(self, first: int, last: int, **changes: Any) -> str:
        """Stage a run of some days; nobody has to like what it gives."""
        run = self.plan(**(self.days(first, last) | changes))
        self.project.stage(run, "ann")
        return run

    def found(self, run: str, **asked: Any) -> dict[str, Any]:
        """Ask for the causes."""
        return self.project.attribute(run, samples=100, **asked).attribution

    def plan(self, **changes: Any) -> str:
        return super().plan(
            reference_data={"rates": {"table": self.lake.table("rates")}}, **changes
        )


def causes(found: dict[str, Any]) -> dict[tuple[str, str], set[Key]]:
    """Give for each class and its factors the keys that it was found for."""
    keys: dict[tuple[str, str], set[Key]] = {}
    for part in found["partitions"]:
        assert part["changed_rows"] == sum(group["rows"] for group in part["groups"])
        for group in part["groups"]:
            names = " + ".join(
                sorted(f"{one['cause']}:{one['input'] or ''}" for one in group["factors"])
            )
            mine = {_key(sample["key"]) for sample in group["samples"]}
            assert len(mine) == group["rows"]
            keys.setdefault((group["cause"], names), set()).update(mine)
    return keys


def _tenant(day: int, key: int) -> str:
    return {7: "R", 15: "S"}.get(day, "BA"[key % 2])


def _key(key: dict[str, Any]) -> Key:
    return int(key["d"][-2:]), int(key["k"])


@pytest.fixture(scope="module")
def restated(
    spark: SparkSession,
    catalog: Catalog,
    profile: Profile,
    lake_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Restated:
    """Give one product for all tests: each works on days of its own."""
    spark.sql("CREATE NAMESPACE lake.attributed")
    project = tmp_path_factory.mktemp("attributed")
    lake = Lake(spark, catalog, profile, lake_folder, project, "attributed")
    return Restated(lake, range(1, 21))


@pytest.mark.long
def test_six_days_with_one_known_cause_each_are_told_apart(restated: Restated) -> None:
    """What was done for the other days is in the inputs of each day all the same."""
    lake = restated.lake
    restated.code(OLD_CODE)
    restated.source("3, 9, A, 309, 1", "3, 10, B, 310, 1")
    lake.sql("UPDATE {ns}.src SET v = v + 7 WHERE d = date'2024-01-04' AND k IN (1, 2)")
    lake.sql("DELETE FROM {ns}.src WHERE d = date'2024-01-05' AND k = 1")
    lake.sql("UPDATE {ns}.out SET v = 0 WHERE d = date'2024-01-06' AND k = 3")
    lake.sql("UPDATE {ns}.rates SET rate = 2 WHERE tenant = 'R'")
    others = restated.restate(3, 7)
    restated.code(NEW_CODE)
    code = restated.restate(2, 2)
    assert causes(restated.found(code)) == {("code", "code:"): {(2, 2), (2, 4)}}
    found = restated.found(others, partitions=5)
    assert [part["changed_rows"] for part in found["partitions"]] == [2, 2, 1, 1, 4]
    assert causes(found) == {
        ("late_input", "late_input:src"): {(3, 9), (3, 10)},
        ("upstream", "upstream:src"): {(4, 1), (4, 2)},
        ("deletion", "deletion:src"): {(5, 1)},
        ("live_write", "live_write:"): {(6, 3)},
        ("reference", "reference:rates"): {(7, 1), (7, 2), (7, 3), (7, 4)},
    }


@pytest.mark.long
def test_mixed_causes_are_each_named_and_their_meeting_is_several(restated: Restated) -> None:
    lake = restated.lake
    restated.code(NEW_CODE)
    restated.source("11, 9, A, 1109, 1", "11, 10, B, 1110, 1")
    lake.sql("UPDATE {ns}.src SET v = v + 7 WHERE d = date'2024-01-10' AND k IN (1, 2)")
    lake.sql("DELETE FROM {ns}.src WHERE d = date'2024-01-11' AND k IN (3, 4)")
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-11' AND k = 1")
    lake.sql("UPDATE {ns}.out SET v = 0 WHERE d = date'2024-01-10' AND k IN (3, 4)")
    lake.sql("UPDATE {ns}.rates SET rate = 2 WHERE tenant = 'S'")
    run = restated.restate(10, 15, target={"partitions": {
        "column": "d", "values": ["2024-01-10", "2024-01-11", "2024-01-15"],
    }})  # fmt: skip
    assert causes(restated.found(run)) == {
        ("code", "code:"): {(11, 2)},
        ("several", "code: + upstream:src"): {(10, 2)},
        ("upstream", "upstream:src"): {(10, 1)},
        ("late_input", "late_input:src"): {(11, 9)},
        ("several", "code: + late_input:src"): {(11, 10)},
        ("deletion", "deletion:src"): {(11, 3), (11, 4)},
        ("deletion", "deletion:target"): {(11, 1)},
        ("live_write", "live_write:"): {(10, 3)},
        ("several", "code: + live_write:"): {(10, 4)},
        ("reference", "reference:rates"): {(15, 1), (15, 2), (15, 3), (15, 4)},
    }
    kept = restated.project.evidence_document(run)["attribution"]
    assert kept["sampled"] == ["2024-01-10", "2024-01-11", "2024-01-15"]
    assert {part["made_by"] for part in kept["partitions"]} == {restated.maker}
    first = kept["partitions"][0]
    assert len(first["live"]) == 1
    assert "overwrite" in first["live"][0]
    (src,) = [one for one in first["inputs"] if one["input"] == "src"]
    assert (src["late_rows"], src["upstream_rows"], src["deleted_rows"]) == (0, 2, 0)
    columns = {group["cause"]: group["columns"] for group in first["groups"]}
    assert columns["upstream"] == {"v": 1}


def test_without_a_known_maker_only_inputs_can_be_told_and_that_is_said(
    restated: Restated,
) -> None:
    """A live job wrote day 25, of the inputs of that time."""
    restated.code(OLD_CODE)
    restated.source("25, 1, A, 901, 1", "25, 2, B, 902, 1")
    restated.holds("25, 1, A, 901, 1", "25, 2, B, 5, 1")
    restated.source("25, 3, A, 903, 1")
    restated.lake.sql("UPDATE {ns}.src SET v = 0 WHERE d = date'2024-01-25' AND k = 1")
    found = restated.found(restated.restate(25, 25))
    assert causes(found) == {
        ("late_input", "late_input:src"): {(25, 3)},
        ("upstream", "upstream:src"): {(25, 1)},
        ("unexplained", "unexplained:"): {(25, 2)},
    }
    (part,) = found["partitions"]
    assert (part["basis"], part["made_by"]) == ("assumed", None)
    assert "no known run made it" in part["notes"][0]


def test_code_that_the_manifest_names_explains_a_first_restatement(restated: Restated) -> None:
    """A live job wrote day 26 by code that is in a git commit only, and row 4 by hand.

    By hand: the old code gives v, the new one -v for 2, 4 and 6. Row 1 and 2 were changed in the
    source since, 9 came late, 3 is as it was.
    """
    restated.code(OLD_CODE | {"version": "0.1.0"})
    commit = committed(restated.folder)
    keys = ("1, A", "2, B", "3, A", "4, B", "6, B")
    restated.source(*(f"26, {key}, {key[0]}0, 1" for key in keys))
    restated.holds(*(f"26, {key}, {key[0]}{int(key[0] == '4')}, 1" for key in keys))
    restated.source("26, 9, A, 90, 1")
    restated.lake.sql("UPDATE {ns}.src SET v = v + 5 WHERE d = date'2024-01-26' AND k IN (1, 2)")
    restated.code(NEW_CODE)
    run = restated.restate(26, 26, previous_code={"file": "jobs/job.py", "git_commit": commit[:9]})
    shutil.rmtree(restated.folder / ".git")
    found = restated.found(run)
    assert causes(found) == {
        ("upstream", "upstream:src"): {(26, 1)},
        ("several", "code: + upstream:src"): {(26, 2)},
        ("unexplained", "code: + unexplained:"): {(26, 4)},
        ("code", "code:"): {(26, 6)},
        ("late_input", "late_input:src"): {(26, 9)},
    }
    (part,) = found["partitions"]
    assert (part["basis"], part["made_by"], part["not_reproduced"]) == ("named", None, 1)
    assert part["named_code"].startswith(f"jobs/job.py of git commit {commit[:12]} (job 0.1.0, ")
    assert "named by the manifest, on the inputs as they were at" in part["notes"][0]
    assert part["notes"][1].startswith("that code does not give the old values of 1 of 5 changed")


@pytest.mark.req("C2")
def test_a_damaged_data_file_is_named_and_nothing_is_told_of_it(restated: Restated) -> None:
    restated.code(OLD_CODE)
    restated.source("16, 9, A, 1609, 1")
    run = restated.restate(16, 16)
    for table in ("src", "out"):
        file = data_file(restated, table)
        whole = file.read_bytes()
        for damage in (b"garbage" * 50, whole[:-30], None):
            file.unlink() if damage is None else file.write_bytes(damage)
            with pytest.raises(LostFile, match=re.escape(file.name)) as refused:
                restated.found(run)
            assert "restore the file" in refused.value.fix
        file.write_bytes(whole)
        assert restated.project.evidence_document(run)["attribution"] is None
    assert causes(restated.found(run)) == {("late_input", "late_input:src"): {(16, 9)}}


def data_file(restated: Restated, table: str) -> Path:
    """Give a data file of day 16."""
    day = "2024-01-16"
    scanned = restated.lake.catalog.load_table(restated.lake.table(table)).scan(f"d = '{day}'")
    return Path(next(iter(scanned.plan_files())).file.file_path.removeprefix("file:"))


def committed(folder: Path) -> str:
    """Make the folder a git repository with all of its files; gives the commit."""
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "jobs"), ("commit", "-q", "-m", "old")):
        subprocess.run([*git, *command], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.long
def test_runs_that_carry_rows_over_are_told_by_the_rows_that_they_make(
    restated: Restated,
) -> None:
    """A row predicate on day 19, a merge on day 20: the mode itself is part of the code."""
    restated.source("19, 9, A, 1909, 1", "19, 10, B, 1910, 1")
    restated.code(OLD_CODE | {"version": "4.0.0", "keep": "F.col('tenant') == 'B'"})
    days = restated.days(19, 19)["target"]
    run = restated.restate(19, 19, target=days | {"row_predicate": {"tenant": "B"}})
    assert causes(restated.found(run)) == {("late_input", "late_input:src"): {(19, 10)}}
    restated.code(OLD_CODE)
    restated.source("20, 1, A, 5, 2", "20, 9, B, 6, 1")
    merge = {"publish_mode": "merge", "merge": {"version": "ver"}}
    run = restated.restate(20, 20, target=restated.days(20, 20)["target"] | merge)
    assert causes(restated.found(run)) == {
        ("several", "code: + late_input:src"): {(20, 1)},
        ("late_input", "late_input:src"): {(20, 9)},
    }


def test_what_a_job_does_not_give_again_is_unexplained(restated: Restated) -> None:
    """The clock of the run decides about one key: no input and no code differs."""
    clock = "F.lit(int(context.clock.timestamp() * 1e6))"
    value = f"F.when(F.col('k') == 1, {clock}).otherwise(amount)"
    restated.code(OLD_CODE | {"version": "3.0.0", "value": value})
    first = restated.published(**restated.days(18, 18))
    restated.source("18, 9, A, 1809, 1")
    run = restated.restate(18, 18, validation={"edge_partitions": 1})
    found = restated.found(run)
    assert causes(found) == {
        ("unexplained", "unexplained:"): {(18, 1)},
        ("late_input", "late_input:src"): {(18, 9)},
    }
    assert found["partitions"][0]["made_by"] == first


def test_code_that_needs_a_column_that_came_later_is_the_code(lake: Lake) -> None:
    restated = Restated(lake, range(1, 3))
    lake.sql("ALTER TABLE {ns}.src ADD COLUMN bonus bigint")
    lake.sql("UPDATE {ns}.src SET bonus = 5 WHERE d = date'2024-01-02' AND k = 1")
    value = "amount + F.coalesce('bonus', F.lit(0))"
    restated.code(OLD_CODE | {"version": "2.0.0", "value": value})
    found = restated.found(restated.restate(2, 2))
    assert causes(found) == {("code", "code:"): {(2, 1)}}
    (part,) = found["partitions"]
    assert [note.split(":")[0] for note in part["notes"]] == [
        "old with new code could not be computed"
    ]
    (src,) = part["inputs"]
    assert src["told_by"] == "its columns changed: swapped as a whole"
