"""Fingerprints of a real lake, by real processes: taken once, used without an engine."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.chaos.faults import Kill
from tests.chaos.lab import BY, SCOPE, TARGET, Lab
from tests.chaos.oracle import CONTROL


def _fingerprints(lab: Lab) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        lab.oracle.table(f"{CONTROL}.file_fingerprint").scan().to_arrow().to_pylist()
    )
    return rows


def _archive(lab: Lab) -> dict[str, Any]:
    written = lab.must("evidence", lab.run).data["archive"]
    found: dict[str, Any] = json.loads(Path(written).read_text(encoding="utf-8"))
    return found


@pytest.mark.req("Q4", "O4")
def test_validating_leaves_a_fingerprint_of_each_file_of_both_sides_with_its_bytes(
    lab: Lab,
) -> None:
    lab.restore("accepted")
    rows = _fingerprints(lab)
    held = [path for day in SCOPE for path in lab.oracle.paths(TARGET)[day]]
    assert {row["file_path"] for row in rows} > set(held)
    assert {row["partition"] for row in rows} == set(SCOPE)
    for row in rows:
        stored = Path(unquote(urlsplit(row["file_path"]).path)).read_bytes()
        assert (row["size_bytes"], row["sha256"]) == (len(stored), sha256(stored).hexdigest())
        assert row["run_id"] == lab.run


@pytest.mark.req("Q4")
@pytest.mark.parametrize("goes_on", ["publish", "recover"])
def test_what_was_published_is_held_against_what_was_accepted(lab: Lab, goes_on: str) -> None:
    lab.restore("accepted")
    lab.killed("publish", lab.run, *BY, hook=Kill("Publisher.swap:committed"))
    lab.must(goes_on, lab.run, *BY)
    assert _archive(lab)["published_rows"] == {
        "name": "what is published is what was accepted",
        "passed": True,
        "detail": f"{len(SCOPE)} partitions equal, by their files",
    }


@pytest.mark.req("Q4")
def test_a_run_whose_files_have_other_fingerprints_by_now_says_so_when_it_is_published(
    lab: Lab,
) -> None:
    lab.restore("accepted")
    _edit(lab, "checksum")
    ended = lab.do("publish", lab.run, *BY)
    assert ended.code == 3
    assert "does not hold what was accepted" in ended.error["problem"]
    assert ended.error["fix"].endswith(f" rollback {TARGET} --to 0 --reason TEXT")
    assert _archive(lab)["published_rows"]["passed"] is False


def _edit(lab: Lab, column: str) -> None:
    """Change a column of all fingerprints, as somebody with access to the lake may."""
    import pyarrow as pa

    table = lab.catalog().load_table(f"{CONTROL}.file_fingerprint")
    rows = table.scan().to_arrow().to_pylist()
    for row in rows:
        name, shape, count, mark = row[column].split(":")
        row[column] = f"{name}:{shape}:{count}:{int(mark, 16) ^ 1:032x}"
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
