"""A lake that an earlier build made is read, verified, rolled back and published to by this one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.project import Project

STORED = Path(__file__).parent / "stored" / "lake-0.1.tar.gz"
#: Iceberg's metadata names absolute paths, so the lake works at this place only.
PLACE = Path("/tmp/lakehouse-backfill-stored-lake")
PRODUCT = "silver.orders"
Rows = list[dict[str, str]]


class StoredLake:
    """The unpacked project, and what the build that made it said of it."""

    def __init__(self) -> None:
        shutil.rmtree(PLACE, ignore_errors=True)
        with tarfile.open(STORED) as archive:
            archive.extractall(PLACE.parent, filter="data")
        self.facts: dict[str, Any] = json.loads((PLACE / "facts.json").read_text("utf-8"))
        self.runs: dict[str, str] = self.facts["runs"]
        self.project = Project.open(PLACE)

    def rows(self, snapshot_id: int | None = None) -> Rows:
        """Read the table with PyIceberg alone."""
        table = self.project.wiring.catalog.load_table(PRODUCT)
        found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        kept = [{name: str(row[name]) for name in ("day", "id", "amount")} for row in found]
        return sorted(kept, key=lambda row: int(row["id"]))


@pytest.fixture
def stored() -> Iterator[StoredLake]:
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield StoredLake()
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def test_what_was_recorded_reads_the_same(stored: StoredLake) -> None:
    versions = stored.project.versions(PRODUCT).to_dict()["versions"]
    # A later build may say more of a version, and nothing else.
    before = stored.facts["versions"]
    assert [
        {key: one[key] for key in old} for one, old in zip(versions, before, strict=True)
    ] == before
    assert stored.project.audit_verify().to_dict() == stored.facts["heads"]
    for name, before in stored.facts["status"].items():
        line = stored.project.status(stored.runs[name]).runs[0].to_dict()
        told = {key: line[key] for key in ("run_id", "product", "state", "readers_see", "at")}
        assert told == {key: before[key] for key in told}, name
    for version in versions:
        assert stored.rows(version["snapshot_id"]) == stored.facts["rows"][str(version["version"])]


def test_the_evidence_of_each_run_has_the_same_bytes(stored: StoredLake) -> None:
    for name, digest in stored.facts["documents"].items():
        document = stored.project.evidence_document(stored.runs[name])
        # `verify` does not compare it: the remark behind it stood in brackets in the stored build.
        line = document["standing"]["next_command"]
        document["standing"]["next_command"] = re.sub(r"   # (.*)$", r"   (\1)", line)
        text = json.dumps(document, sort_keys=True, default=str)
        assert hashlib.sha256(text.encode()).hexdigest() == digest, name


def test_what_was_accepted_is_still_proven(stored: StoredLake) -> None:
    for name in ("first", "second"):
        found = stored.project.verify(stored.runs[name])
        assert found.intact, [check for check in found.checks if check.ok is False]


def test_a_rollback_gives_the_rows_of_the_version_before(stored: StoredLake) -> None:
    before = stored.facts["rows"]
    assert stored.rows() == before["2"]
    assert stored.project.rollback(PRODUCT, to=1, reason="wrong", by="ana").version == 1
    assert stored.rows() == before["1"]
    assert stored.project.rollback(PRODUCT, to=0, reason="wrong", by="ana").version == 0
    assert stored.rows() == before["0"]
    assert stored.project.audit_verify().intact


def test_a_run_that_was_validated_is_accepted_and_published(stored: StoredLake) -> None:
    run = stored.runs["validated"]
    stored.project.accept(run, by="ana")
    assert stored.project.publish(run, by="ana").version == 3
    # Its transform adds 7 to the source, whose amounts are one above what the table held.
    first = [row for row in stored.facts["rows"]["2"] if row["day"] == "2024-01-01"]
    others = [row for row in stored.facts["rows"]["2"] if row["day"] != "2024-01-01"]
    assert (
        stored.rows() == [row | {"amount": str(int(row["amount"]) + 8)} for row in first] + others
    )
    assert stored.project.cancel(stored.runs["planned"], by="bob").state == "cancelled"


@pytest.mark.req("X8")
@pytest.mark.parametrize(
    "fields",
    [{"pilot": ["silver.other"]}, {"product_switches": {PRODUCT: {"publish": False}}}],
)
def test_what_the_file_of_profiles_switches_off_is_not_published(
    stored: StoredLake, fields: dict[str, Any]
) -> None:
    file, run = PLACE / "catalog" / "profiles.yaml", stored.runs["validated"]
    stored.project.accept(run, by="ana")
    before, switched_on = stored.rows(), file.read_text("utf-8")
    document = yaml.safe_load(switched_on)
    document["profiles"][document["default"]] |= fields
    file.write_text(yaml.safe_dump(document), "utf-8")
    words = ["--project", str(PLACE), "--json", "publish", run, "--by", "ana"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, json.loads(done.output)["error"]["code"]) == (3, "blocked")
    assert stored.rows() == before
    file.write_text(switched_on, "utf-8")
    assert CliRunner().invoke(app, words).exit_code == 0
    assert stored.rows() != before
