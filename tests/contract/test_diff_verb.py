"""`diff` of a project: any two states, previews, the choice of the engine, exit codes; no JVM."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import IdentityTransform
from typer.testing import CliRunner

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.core.comparison.diff import choose_engine
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileFingerprint
from lakehouse_backfill.domain.comparison.diff import FileTotals
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.project import Project
from tests.contract.differ_cases import SIMPLE, Maker, append, day, overwrite, simple
from tests.contract.differ_more_cases import MORE_CASES

pytestmark = pytest.mark.req("Q5")

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, Any]]:
    """A table by day with three states: as it was, one day restated, all written anew."""
    project = Project.open(_folder(tmp_path_factory.mktemp("verb")))
    project.wiring.create_lake()
    make = Maker(project.wiring.catalog, "silver")
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    states = {"first": append(table, simple())}
    changed = [dict(row, v=row["v"] + 1) if row["d"] == day(3) else row for row in simple()]
    late = [row for row in changed if row["d"] == day(3)]
    states["second"] = overwrite(table, late, EqualTo("d", day(3).isoformat()))
    states["third"] = overwrite(table, changed)
    return project, states


def _folder(folder: Path) -> Path:
    (folder / "catalog").mkdir()
    text = (
        "api_version: lakehouse-backfill/v1\ndefault: embedded\nprofiles:\n  embedded:\n"
        "    catalog:\n      name: lake\n      type: sql\n"
        "      uri: sqlite:///${project}/.lakehouse/catalog.db\n"
        "      warehouse: file://${project}/.lakehouse/warehouse\n"
        "    local_diff_limit_mib: 7\n"
    )
    (folder / "catalog" / "profiles.yaml").write_text(text, encoding="utf-8")
    return folder


def states_of(lake: tuple[Project, dict[str, Any]], *names: str) -> list[str]:
    return [f"silver.t@{lake[1][name]}" for name in names]


def test_a_diff_says_which_engine_and_why(lake: tuple[Project, dict[str, Any]]) -> None:
    old, new = states_of(lake, "first", "second")
    found = lake[0].diff(old, new, key=("d", "k"))
    assert found.to_dict()["summary"] == {
        "old_rows": 12, "new_rows": 12, "added": 0, "removed": 0, "changed": 3, "unchanged": 9
    }  # fmt: skip
    choice = found.engine_choice
    assert choice is not None
    size = choice.bytes_to_read
    assert choice.model_dump() == {
        "engine": "local", "why": f"{size / MIB:,.1f} MiB to read, at most 7.0 MiB",
        "bytes_to_read": size, "limit_bytes": 7 * MIB,
    }  # fmt: skip
    assert size > 0


def test_ignored_columns_and_tolerances_take_differences_away(
    lake: tuple[Project, dict[str, Any]],
) -> None:
    old, new = states_of(lake, "first", "second")
    for options in ({"ignore": ("v",)}, {"tolerance": ("v=1",)}, {"tolerance": ("v=50%",)}):
        assert lake[0].diff(old, new, key=("d", "k"), **options).equal, options
    assert not lake[0].diff(old, new, key=("d", "k"), tolerance=("v=0.5",)).equal


def test_a_preview_proves_by_shared_files_and_reads_no_row(
    lake: tuple[Project, dict[str, Any]],
) -> None:
    old, new = states_of(lake, "first", "second")
    files = _data_files(lake[0].folder)
    hidden = [path.rename(path.with_suffix(".away")) for path in files]
    try:
        found = lake[0].preview_diff(old, new, key=("d", "k")).to_dict()
        same = lake[0].preview_diff(old, old, key=("d", "k")).to_dict()
    finally:
        for path in hidden:
            path.rename(path.with_suffix(".parquet"))
    assert (found["identical"], same["identical"]) == (False, True)
    assert [found["shared"]["files"], found["shared"]["rows"]] == [3, 9]
    assert [found[side]["rows"] for side in ("old_to_read", "new_to_read")] == [3, 3]
    proofs = {one["partition"]: one["proven_by"] for one in found["partitions"]}
    days = [day(number).isoformat() for number in range(4)]
    assert proofs == dict(zip(days, ["shared files"] * 3 + [None], strict=True))
    assert found["bytes_to_read"] == sum(
        found[side]["bytes"] for side in ("old_to_read", "new_to_read")
    )


def test_partitions_of_equal_fingerprints_are_not_read(
    lake: tuple[Project, dict[str, Any]],
) -> None:
    make = Maker(lake[0].wiring.catalog, "equal")
    built = MORE_CASES.named("partitions known to be equal").build(make)
    differ = LocalDiffer(lake[0].wiring.catalog)
    preview = differ.preview(built.request)
    assert (preview.equal_by_fingerprint.rows, preview.old_to_read.rows) == (6, 6)
    assert [one.proven_by for one in preview.partitions] == [
        "fingerprints", "fingerprints", None, None
    ]  # fmt: skip
    alone = differ.preview(replace(built.request, known_equal=frozenset()))
    assert (alone.equal_by_fingerprint, alone.old_to_read.rows) == (FileTotals(), 12)
    assert preview.bytes_to_read < alone.bytes_to_read


def test_what_is_known_of_files_proves_rewritten_partitions_to_be_equal(
    lake: tuple[Project, dict[str, Any]],
) -> None:
    project, states = lake
    context = project.wiring.context
    field = ScopeField(column="d", transform="identity", type="date")
    for name in ("second", "third"):
        reading = context.stored_files.reading("silver.t", states[name])
        files = context.tables.files("silver.t", states[name], field)
        context.evidence.record_fingerprints(tuple(_fingerprint(one, reading) for one in files))
    old, new = states_of(lake, "second", "third")
    found = project.preview_diff(old, new, key=("d", "k")).to_dict()
    assert found["identical"]
    assert (found["equal_by_fingerprint"]["files"], found["shared"]["files"]) == (4, 0)
    assert {one["proven_by"] for one in found["partitions"]} == {"fingerprints"}
    # Of the first state's last day nothing is known.
    other = project.preview_diff(states_of(lake, "first")[0], new, key=("d", "k")).to_dict()
    assert [one["partition"] for one in other["partitions"] if not one["proven_by"]] == [
        day(3).isoformat()
    ]


def _fingerprint(file: LiveFile, reading: str) -> FileFingerprint:
    """Rows are the same in files of one day, for which the day stands here."""
    number = date.fromisoformat(file.partition or "").toordinal()
    return FileFingerprint(
        path=file.path, table="silver.t", reading=reading, partition=file.partition,
        size_bytes=file.size_bytes, sha256=hashlib.sha256(file.path.encode()).hexdigest(),
        checksum=Checksum(rows=file.rows, xor=number, total=number, shape="a" * 64),
        run_id=None, at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "size", "engine", "why"),
    [
        ("auto", 3 * MIB, "local", "3.0 MiB to read, at most 4.0 MiB"),
        ("auto", 5 * MIB, "spark", "5.0 MiB to read, more than 4.0 MiB"),
        ("local", 5 * MIB, "local", "it was asked for"),
        ("spark", None, "spark", "it was asked for"),
    ],
)
def test_the_size_chooses_the_engine_unless_one_is_named(
    asked: str, size: int | None, engine: str, why: str
) -> None:
    found = choose_engine(asked, size, 4 * MIB)
    assert (found.engine, found.why, found.bytes_to_read) == (engine, why, size)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="no engine 'dask'"):
        choose_engine("dask", 0, 1)


EXITS = [
    pytest.param(("first", "third"), (), 0, True, id="differs"),
    pytest.param(("first", "third"), ("--fail-on-difference",), 3, False, id="must not"),
    pytest.param(("second", "third"), ("--fail-on-difference",), 0, True, id="equal"),
    pytest.param(
        ("first", "third"), ("--fail-on-difference", "--tolerance", "v=1"), 0, True, id="near"
    ),
    pytest.param(
        ("first", "third"), ("--fail-on-difference", "--preview"), 3, False, id="not proven"
    ),
    pytest.param(("first", "first"), ("--fail-on-difference", "--preview"), 0, True, id="proven"),
]


@pytest.mark.parametrize(("names", "options", "code", "ok"), EXITS)
def test_a_difference_ends_in_3_only_when_asked(
    lake: tuple[Project, dict[str, Any]],
    names: tuple[str, str],
    options: tuple[str, ...],
    code: int,
    *,
    ok: bool,
) -> None:
    words = ["--project", str(lake[0].folder), "diff", *states_of(lake, *names)]
    done = CliRunner().invoke(app, [*words, "--key", "d,k", "--json", *options, "--by", "ana"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["exit_code"]) == (code, ok, code)


def test_a_preview_is_shown_to_people(lake: tuple[Project, dict[str, Any]]) -> None:
    words = ["--project", str(lake[0].folder), "diff", *states_of(lake, "first", "second")]
    loaded_before = "pyspark" in sys.modules
    done = CliRunner().invoke(app, [*words, "--key", "d,k", "--preview", "--local-limit", "0"])
    assert done.exit_code == 0
    assert "1 of 4 partitions would be read" in done.stdout
    assert "spark: 0.0 MiB to read, more than 0.0 MiB" in done.stdout
    assert ("pyspark" in sys.modules) is loaded_before


def _data_files(folder: Path) -> list[Path]:
    return sorted((folder / ".lakehouse" / "warehouse").rglob("data/**/*.parquet"))
