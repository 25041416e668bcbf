"""Spark where each table's credentials end at its prefix: by Iceberg's own classes for S3 (X12)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from tests.stack import catalog_rules
from tests.stack.catalogs import KEYS, Catalogs
from tests.stack.servers import MAKE, ROOT, TOOLS, Rest, Seaweed, missing
from tests.support.spark.restating import DAYS, SCOPE


def jars(folder: Path) -> Path:
    """Give a folder of Spark's jars with the one for S3, as a user lays it out."""
    folder.mkdir()
    for place in (ROOT / ".tools" / "jars", TOOLS / "spark"):
        found = list(place.glob("*.jar"))
        if not found:
            missing(f"what Spark needs ({place.name})", f"run `{MAKE}`")
        for jar in found:
            (folder / jar.name).symlink_to(jar)
    return folder


def restate(folder: Path, catalog: dict[str, str]) -> dict[str, Any]:
    """Restate and roll back in a process of its own; give the table and its heads."""
    log = folder / "driver.log"
    env = {
        "LAKEHOUSE_BACKFILL_JARS": str(jars(folder / "jars")),
        "LAKEHOUSE_BACKFILL_SPARK_LOG": str(log),
    }
    command = [sys.executable, "-m", "tests.stack.vended_by_spark"]
    done = subprocess.run(
        [*command, str(folder / "project"), json.dumps(catalog)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **env},
    )  # fmt: skip
    words = log.read_text("utf-8")[-3000:] if log.exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + words
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.req("X12")
def test_spark_stages_and_no_request_leaves_the_prefix_of_its_key(
    catalogs: Catalogs, rest: Rest, seaweed: Seaweed, tmp_path: Path
) -> None:
    """On a catalog that refuses what Lakekeeper and Polaris refuse, and is as often busy."""
    rules = [*catalog_rules.lakekeeper(), *catalog_rules.polaris()]
    properties = {"name": "lake", **catalogs.vended(rules, **KEYS)}
    told = restate(tmp_path, {**properties, "s3.region": "us-east-1"})
    # Past the proxy and the door, by PyIceberg with keys of the whole store.
    past = f"{rest.uri}/{properties['uri'].rpartition('/')[2]}"
    table = load_catalog("past", type="rest", uri=past, **seaweed.s3()).load_table(told["table"])

    def rows(state: str) -> list[tuple[str, int, int]]:
        found = table.scan(snapshot_id=told["heads"][state]).to_arrow().to_pylist()
        return sorted((str(row["d"]), row["id"], row["v"]) for row in found)

    def expected(wrong: int) -> list[tuple[str, int, int]]:
        days = [(DAYS[n % 5], n) for n in range(50)]
        return sorted((day, n, n * (wrong if day in SCOPE else 10)) for day, n in days)

    assert told["heads"]["validated"] == told["heads"]["filled"]
    assert rows("filled") == rows("rolled back") == expected(100)
    assert rows("published") == expected(10)
    head = table.current_snapshot()
    assert head
    assert head.snapshot_id == told["heads"]["rolled back"]
    assert catalogs.proxy.faults[-1].met > 0  # it was busy, and nothing else was refused
    assert [rule.met for rule in rules[:-1]] == [0] * (len(rules) - 1)
    door = catalogs.door
    assert door.clients["s3fileio"] >= {"GET", "PUT"}, door.clients
    assert door.refused() == []
    assert door.asked
    for who, _, places, status in door.asked:
        assert all(place.startswith(f"{who}/") for place in places.split(", ")), (who, places)
        assert status < 400 or status == 404, (who, places, status)
