"""The guided demo, as a newcomer runs it: one command, in a fresh clone."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.system.journal import LOG_FOLDER
from tests.setup.demo import PRODUCT, Demo
from tests.support.oracles import arrivals

if TYPE_CHECKING:
    import pandas as pd

pytestmark = pytest.mark.timeout(900)
GOLDEN = Path(__file__).with_name("golden") / "demo.txt"
BAD = ("2013-02-15", "2013-04-01")


@pytest.fixture(scope="module")
def versions(demo: Demo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.json("versions", PRODUCT)["data"]["versions"]
    return found


def _same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    import pandas as pd

    key = ["arrival_date", "dest", "carrier"]
    left = found.sort_values(key).reset_index(drop=True)
    right = wanted[list(left.columns)].sort_values(key).reset_index(drop=True)
    # As texts: the reader's and the oracle's types differ where their values do not.
    pd.testing.assert_frame_equal(left.astype(str).fillna("null"), right.astype(str).fillna("null"))


@pytest.mark.req("U1", "U12", "T5", "Q10")
def test_every_version_of_the_product_holds_what_the_oracle_says(
    demo: Demo, versions: list[dict[str, Any]]
) -> None:
    actions = [(row["version"], row["action"]) for row in versions]
    assert actions == [(2, "publish"), (0, "rollback"), (1, "publish"), (0, "baseline")]
    history, restated = arrivals.history(), arrivals.restated()
    for row, wanted in zip(versions, (restated, history, restated, history), strict=True):
        _same(demo.rows(row["snapshot_id"]), wanted)
    assert int(demo.rows(versions[0]["snapshot_id"])["flights"].sum()) == 336_776
    assert int(demo.rows(versions[3]["snapshot_id"])["flights"].sum()) == 336_786


@pytest.mark.req("U1", "U11")
def test_files_outside_the_declared_partitions_are_the_same_before_and_after(
    demo: Demo, versions: list[dict[str, Any]]
) -> None:
    table = demo.table()
    outside = f"arrival_date < '{BAD[0]}' or arrival_date >= '{BAD[1]}'"
    found = [
        {
            task.file.file_path
            for task in table.scan(row_filter=outside, snapshot_id=row["snapshot_id"]).plan_files()
        }
        for row in versions
    ]
    assert len(found[0]) == 366 - 45
    assert all(files == found[0] for files in found)


def test_the_transcript_is_the_golden_one(demo: Demo) -> None:
    assert demo.plain_transcript() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.req("Q10", "Q3")
def test_the_two_wrong_manifests_were_stopped_for_the_right_reason(demo: Demo) -> None:
    assert "restate from 2013-02-15 to 2013-04-01 instead" in demo.transcript
    assert "expect_column_values_to_be_in_set(dest)" in demo.transcript


@pytest.mark.req("Q9")
def test_checks_of_chunks_take_little_of_the_staging(
    demo: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the log says of both; the seconds of all steps are printed."""
    spent: dict[str, float] = defaultdict(float)
    for log in (demo.folder / LOG_FOLDER).glob("*.jsonl"):
        for line in log.read_text("utf-8").splitlines():
            one = json.loads(line)
            spent[one["event"]] += one["seconds"] or 0.0
    with capsys.disabled():
        sys.stdout.write(demo.transcript.partition("\nsteps\n")[2])
    assert spent["check chunk"] <= 0.15 * (spent["stage chunk"] + spent["check chunk"])


#: Commands that scan no data.
LINES = (
    "status --all",
    "status {run}",
    "log {run}",
    "chunks {run}",
    f"versions {PRODUCT}",
    "plan jobs/arrivals_daily/3-restate.yaml --dry-run",
    f"rollback {PRODUCT} --reason x --dry-run --by lead",
    "evidence {run}",
    "diff {run}",
    "doctor",
)


@pytest.fixture(scope="module")
def ended(
    demo: Demo, versions: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """How each of `LINES` ended, and its stderr."""
    lines = [line.format(run=versions[0]["run_id"]) for line in LINES]
    found = demo.watched_all(lines, tmp_path_factory.mktemp("watched"))
    return dict(zip(LINES, found.values(), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_a_command_without_data_scan_starts_no_jvm(
    ended: dict[str, tuple[int, str]], line: str
) -> None:
    code, stderr = ended[line]
    assert (code, "Traceback" in stderr) == (0, False), stderr


@pytest.mark.req("U12")
def test_publishing_again_and_an_illegal_verb_change_nothing(
    demo: Demo, versions: list[dict[str, Any]]
) -> None:
    run_id = versions[0]["run_id"]
    again = demo.json("publish", run_id, "--by", "ana")
    assert (again["data"]["was_published"], again["data"]["version"]) == (True, 2)
    refused = demo.json("approve", run_id, "--by", "ana")
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "illegal-move")
    assert demo.json("versions", PRODUCT)["data"]["versions"] == versions


@pytest.mark.req("Q5")
def test_the_diff_of_the_run_counts_what_the_oracle_counts(
    demo: Demo, versions: list[dict[str, Any]]
) -> None:
    import pandas as pd

    summary = demo.json("diff", versions[0]["run_id"])["data"]["summary"]
    key = ["arrival_date", "dest", "carrier"]
    sides = []
    for table in (arrivals.history(), arrivals.restated()):
        days = pd.to_datetime(table["arrival_date"])
        sides.append(table[(days >= BAD[0]) & (days < BAD[1])].astype(str).fillna("null"))
    joined = sides[0].merge(sides[1], on=key, how="outer", indicator=True, suffixes=("", "_new"))
    values = [name for name in sides[0].columns if name not in key]
    both = joined[joined["_merge"] == "both"]
    same = (both[values].to_numpy() == both[[f"{name}_new" for name in values]].to_numpy()).all(1)
    assert summary == {
        "old_rows": len(sides[0]),
        "new_rows": len(sides[1]),
        "added": int((joined["_merge"] == "right_only").sum()),
        "removed": int((joined["_merge"] == "left_only").sum()),
        "changed": int((~same).sum()),
        "unchanged": int(same.sum()),
    }


@pytest.mark.req("U13")
def test_readers_get_the_accepted_rows_through_arrow_and_duckdb(demo: Demo) -> None:
    from lakehouse_backfill.project import accepted

    rows = accepted(PRODUCT, "arrow", folder=demo.folder)
    relation = accepted(PRODUCT, "duckdb", folder=demo.folder)
    assert sum(rows.column("flights").to_pylist()) == 336_776
    assert relation.sum("flights").fetchall() == [(336_776,)]


def test_a_real_rollback_and_publication_start_no_jvm(
    demo: Demo, versions: list[dict[str, Any]]
) -> None:
    run_id = versions[0]["run_id"]
    for line in (f"rollback {PRODUCT} --reason x --by ana", f"publish {run_id} --by ana"):
        done = demo.watched(*line.split())
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    newest = demo.json("versions", PRODUCT)["data"]["versions"][0]
    assert (newest["version"], newest["action"]) == (3, "publish")
    _same(demo.rows(newest["snapshot_id"]), arrivals.restated())
