"""verify on a real lake: who changes what is stored is named, wherever it was changed (O4)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from typer.testing import CliRunner

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import Conflict
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.lab import BY, TARGET, Lab
from tests.chaos.worker import LabWiring
from tests.support.lakes.tables import compact_files
from tests.support.lakes.verified import (
    Found,
    control_files,
    data_file,
    edit_rows,
    empty_control_table,
    published,
    verify,
)

pytestmark = [pytest.mark.req("O4"), pytest.mark.in_turn(2, of="file")]
ROOT = Path(__file__).resolve().parents[2]


def summaries(lab: Lab) -> list[dict[str, str]]:
    with lab.opened() as catalog:
        return [
            dict(one.summary.additional_properties) if one.summary else {}
            for one in catalog.load_table(TARGET).snapshots()
        ]


def pointer_rows(lab: Lab) -> list[dict[str, Any]]:
    with lab.opened() as catalog:
        table = catalog.load_table("lakehouse_backfill.accepted_output_version")
        return table.scan().to_arrow().to_pylist()


def accept_event(lab: Lab) -> dict[str, Any]:
    events = lab.must("log", lab.run).data["events"]
    return next(event["detail"] for event in events if event["verb"] == "accept")


def _on_the_page(name: str) -> str:
    """Write the name of a check as docs/verification.md does."""
    return re.sub(r"file \S+$", "file NAME", re.sub(r"version \d+", "version N", name))


def test_what_was_accepted_is_found_intact_and_nothing_is_left_out(lab: Lab) -> None:
    shallow, deep = verify(lab), verify(lab, "--deep")
    assert (shallow.code, shallow.bad, shallow.unknown) == (0, {}, {"signatures"})
    assert (deep.code, deep.bad, deep.unknown) == (0, {}, {"signatures"})
    assert (shallow.data["deep"], shallow.data["files_read"]) == (False, 0)
    named = {_on_the_page(check["name"]) for check in deep.data["checks"]}
    page = (ROOT / "docs/verification.md").read_text(encoding="utf-8")
    table = page.split("## verify RUN")[1].split("\n\n")[1].splitlines()[2:]
    assert named <= {name for row in table for name in row.split("|")[1].strip().split(", ")}
    # The bytes of the files vouch for their rows: no engine read any.
    assert (deep.data["files_read"], deep.data["partitions_read_by_spark"]) == (3, 0)


def test_the_archives_hash_stands_in_the_log_the_pointer_and_the_snapshot(lab: Lab) -> None:
    digest = accept_event(lab)["archive"]
    rows = {row["action"]: row["evidence_digest"] for row in pointer_rows(lab)}
    marks = [one["lakehouse-backfill.evidence-digest"] for one in summaries(lab)[1:]]
    assert (rows, marks) == (
        {"baseline": None, "reserve": digest, "publish": digest},
        [digest],
    )


def _faster(point: str) -> None:
    """Somebody else changes the table before this process does."""
    if point == "Publisher.adopt:before":
        raise Conflict("somebody was faster", fix="repeat the same command")


def test_what_was_accepted_twice_is_found_intact_each_time(lab: Lab) -> None:
    lab.must("rollback", TARGET, "--reason", "not yet", *BY)
    assert "was faster" in lab.do("publish", lab.run, *BY, hook=_faster).error["problem"]
    for verb in ("validate", "accept"):
        lab.must(verb, lab.run, *BY)
        assert verify(lab).bad == {}
    lab.must("publish", lab.run, *BY)
    shallow, deep = verify(lab), verify(lab, "--deep")
    assert (shallow.code, shallow.bad, deep.code, deep.bad) == (0, {}, 0, {})
    digests = {row["evidence_digest"] for row in pointer_rows(lab) if row["action"] == "publish"}
    assert len(digests) == 2
    assert shallow.unknown <= {"files of version 1", "signatures"}


def test_a_flipped_byte_in_a_data_file_is_named_by_reading_data_only(lab: Lab) -> None:
    path = data_file(lab)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify(lab).bad == {}
    found = verify(lab, "--deep")
    assert found.code == 3
    assert set(found.bad) == {"SHA-256 of the data files of version 1", "rows of version 1"}
    assert path.name in found.bad["SHA-256 of the data files of version 1"]
    assert "2024-01-03" in found.bad["rows of version 1"]


def test_a_swapped_data_file_is_named_by_its_size(lab: Lab) -> None:
    path = data_file(lab)
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, 1), path)
    found = verify(lab)
    assert (found.code, list(found.bad)) == (3, ["files of version 1"])
    assert path.name in found.bad["files of version 1"]


def test_a_data_file_that_is_gone_is_named(lab: Lab) -> None:
    path = data_file(lab)
    path.unlink()
    found = verify(lab)
    assert (found.code, list(found.bad)) == (3, ["files of version 1"])
    assert path.name in found.bad["files of version 1"]


@pytest.mark.parametrize("suffix", ["json", "html"])
def test_an_edited_evidence_file_is_named(lab: Lab, suffix: str) -> None:
    path = lab.folder / ".lakehouse-backfill" / "evidence" / f"{lab.run}.{suffix}"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("wrong rate", "right rate"), encoding="utf-8")
    found = verify(lab)
    assert found.code == 3
    assert f"evidence file {path.name}" in found.bad


def test_an_exported_archive_is_checked_where_it_lies_also_when_it_is_older(lab: Lab) -> None:
    folder = lab.folder / "audit"
    lab.must("evidence", lab.run, "--export", str(folder))
    lab.must("rollback", TARGET, "--reason", "not yet", *BY)
    assert verify(lab, "--evidence", str(folder)).bad == {}
    path = folder / f"{lab.run}.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    held["events"][1]["actor"] = "eve"
    path.write_text(json.dumps(held), encoding="utf-8")
    assert f"evidence file {path.name}" in verify(lab, "--evidence", str(folder)).bad


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum here")
def test_page_and_archive_can_be_checked_without_this_tool(lab: Lab) -> None:
    folder = lab.folder / ".lakehouse-backfill" / "evidence"
    done = subprocess.run(
        ["sha256sum", "--check", f"{lab.run}.sha256"],
        cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ, LC_ALL="C"),
    )  # fmt: skip
    assert (done.returncode, done.stdout.count(": OK")) == (0, 2)


def _set(field: str, value: Any, **where: Any) -> Any:
    def change(row: dict[str, Any]) -> bool:
        if any(row[name] != wanted for name, wanted in where.items()):
            return False
        row[field] = value(row[field]) if callable(value) else value
        return True

    return change


def _rate(text: str) -> str:
    return text.replace("wrong rate", "right rate")


EDITS: dict[str, tuple[str, Any, str]] = {
    "plan": ("pipeline_run", _set("plan", _rate), "plan"),
    "event": ("run_event", _set("actor", "eve", verb="approve"), "log and pointers"),
    "validation": (
        "evidence",
        _set("document", lambda text: text.replace('"passed":true', '"passed":false'),
             kind="validation"),
        "validation",
    ),
    "archive": (
        "evidence",
        _set("document", lambda text: text.replace('"rows":3', '"rows":4'), kind="acceptance"),
        "archive of the acceptance",
    ),
    "publication": (
        "evidence",
        _set("document", _rate, kind="publication"),
        "row of version 1",
    ),
    "ledger": (
        "backfill_chunk_run", _set("output_rows", 4, chunk_id="c0001-2024-01-02"), "chunk ledger"
    ),
    "version": (
        "accepted_output_version", _set("reason", "right rate", action="publish"),
        "row of version 1",
    ),
    "older version": (
        "accepted_output_version", _set("reason", "nothing was wrong", action="baseline"),
        "log and pointers",
    ),
    "fingerprint": (
        "file_fingerprint", _set("sha256", "0" * 64), "fingerprints"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_control_row_is_named(lab: Lab, name: str) -> None:
    table, change, check = EDITS[name]
    assert edit_rows(lab, table, change) > 0
    found = verify(lab)
    assert found.code == 3
    assert check in found.bad, found.bad


def test_an_edited_row_of_the_pointer_is_named_by_the_audit_too(lab: Lab) -> None:
    edit_rows(lab, *EDITS["older version"][:2])
    said = lab.do("audit", "verify")
    assert said.code == 3
    assert "version 0 (baseline by ana) was edited" in json.loads(said.said)["data"]["first_bad"]


def test_a_manifest_that_was_edited_is_named(lab: Lab) -> None:
    with lab.opened() as catalog:
        table = catalog.load_table(f"lakehouse_backfill_shadow.t__{lab.run.replace('-', '_')}")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifest = Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://"))
    data = bytearray(manifest.read_bytes())
    data[-1] ^= 1
    manifest.write_bytes(data)
    found = verify(lab)
    assert "metadata of the candidate" in found.bad
    assert manifest.name in found.bad["metadata of the candidate"]


def test_after_a_rollback_what_was_accepted_is_still_verified(lab: Lab) -> None:
    lab.must("rollback", TARGET, "--reason", "not yet", *BY)
    found: Found = verify(lab, "--deep")
    assert (found.code, found.bad) == (0, {})


def _live(lab: Lab, change: Callable[[Table], None]) -> None:
    with lab.opened() as catalog:
        change(catalog.load_table(TARGET))


def _other_rows(table: Table) -> None:
    table.overwrite(table.scan().to_arrow().slice(0, 1), "d = '2024-01-03'")


def _no_rows(table: Table) -> None:
    table.delete("d = '2024-01-03'")


def _set_back(table: Table) -> None:
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()


def _set_back_and_append(table: Table) -> None:
    row = table.scan("d = '2024-01-06'").to_arrow().slice(0, 1)
    _set_back(table)
    table.refresh().append(row)


FOREIGN: dict[str, tuple[Callable[[Table], None], str]] = {
    "overwrite": (_other_rows, "not 2024-01-03: snapshot "),
    "delete": (_no_rows, "not 2024-01-03: snapshot "),
    "set back": (_set_back, "not 2024-01-02, 2024-01-03, 2024-01-04: "),
    "set back, appended": (_set_back_and_append, "main branch was set back to snapshot "),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_readers_get_instead_of_the_accepted_rows_is_told_apart(lab: Lab, name: str) -> None:
    change, expected = FOREIGN[name]
    _live(lab, change)
    for options in ((), ("--deep",)):
        found = verify(lab, *options)
        assert (found.code, list(found.bad)) == (3, ["what readers get now"])
        assert expected in found.bad["what readers get now"]
    stands = lab.must("status", lab.run).data["runs"][0]
    assert expected in stands["readers_see"]
    assert not stands["is_safe"].startswith("yes")


DAYS = Scope(
    field=ScopeField(column="d", transform="identity", type="date"),
    partitions=("2024-01-02", "2024-01-03"),
)


def test_the_rows_of_a_compaction_are_read_where_readers_get_them(lab: Lab) -> None:
    """Two of the three partitions have other files, and no other rows."""
    _live(lab, lambda table: compact_files(table, DAYS))
    assert verify(lab).bad == {}
    found = verify(lab, "--deep")
    assert (found.code, found.bad) == (0, {})
    assert found.data["partitions_read_by_spark"] == 2


def test_a_compaction_that_changed_rows_is_found_by_reading_them(lab: Lab) -> None:
    """Two rows exchanged their keys: counts, bounds and nulls of all columns are as before."""

    def exchange(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first, second = [row for row in rows if str(row["d"]) == "2024-01-03"][:2]
        first["k"], second["k"] = second["k"], first["k"]
        return rows

    _live(lab, lambda table: compact_files(table, DAYS, exchange))
    assert verify(lab).bad == {}
    found = verify(lab, "--deep")
    name = f"rows of {TARGET} at its head, which readers get"
    assert (found.code, list(found.bad)) == (3, [name])
    assert "2024-01-03" in found.bad[name]
    assert "2024-01-02" not in found.bad[name]


def test_a_live_commit_elsewhere_changes_nothing_that_readers_get_of_the_run(lab: Lab) -> None:
    _live(lab, lambda table: table.delete("d = '2024-01-06'"))
    assert (verify(lab).code, verify(lab).bad) == (0, {})
    stands = lab.must("status", lab.run).data["runs"][0]
    assert stands["readers_see"] == "the restated partitions of this run"
    assert stands["is_safe"] == "yes: the old partitions are pinned and can come back"


def test_old_partitions_that_nothing_holds_are_not_called_restorable(lab: Lab) -> None:
    def drop_tags(table: Table) -> None:
        for name in [name for name in table.metadata.refs if name.startswith("lhb-before-")]:
            table.manage_snapshots().remove_tag(name).commit()

    _live(lab, drop_tags)
    stands = lab.must("status", lab.run).data["runs"][0]
    assert stands["is_safe"].startswith("NO: what it replaced cannot be restored: tag lhb-before-")


def test_control_tables_are_only_read(lab: Lab) -> None:
    before = lab.oracle.state()
    verify(lab, "--deep")
    assert (lab.oracle.state(), bool(control_files(lab, "evidence"))) == (before, True)


def _forget_fingerprints(lab: Lab) -> None:
    empty_control_table(lab, "file_fingerprint")


def test_rows_that_no_bytes_vouch_for_are_read_again(tmp_path: Path) -> None:
    lab = published(tmp_path, _forget_fingerprints)
    found = verify(lab, "--deep")
    assert (found.code, found.data["partitions_read_by_spark"]) == (0, 3)
    assert found.unknown == {"fingerprints", "SHA-256 of the data files of version 1", "signatures"}
    path = data_file(lab)
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(2, rows.schema.field(2), [[10, 20, 31]]), path)
    assert "2024-01-03" in verify(lab, "--deep").bad["rows of version 1"]


def test_a_staged_file_that_was_damaged_at_equal_size_is_not_published(lab: Lab) -> None:
    lab.must("rollback", TARGET, "--reason", "not yet", *BY)
    with lab.opened() as catalog:
        shadow = catalog.load_table(f"lakehouse_backfill_shadow.t__{lab.run.replace('-', '_')}")
        file = next(iter(shadow.scan("d = '2024-01-03'").plan_files())).file.file_path
    path = Path(file.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    whole = path.read_bytes()
    path.write_bytes(data)
    before = lab.oracle.state()
    refused = lab.do("publish", lab.run, "--check-files", *BY)
    assert (refused.code, refused.error["code"]) == (3, "tampered")
    assert path.name in refused.error["problem"]
    assert lab.oracle.state() == before
    path.write_bytes(whole)
    assert lab.must("publish", lab.run, "--check-files", *BY).code == 0


def _drawn(lab: Lab, *words: str) -> Any:
    """Type a command as a person does, in this process: exit code and text."""

    def opener(where: Path, profile: str | None, progress: Any) -> Project:
        found = Adapters.open(where, profile, progress)
        return Project(LabWiring(found.folder, found.profile, progress, found.profile_name))

    return CliRunner().invoke(app, ["--project", str(lab.folder), *words], obj=opener)


@pytest.mark.parametrize("last", ["plan", "approve", "stage", "validate"])
def test_a_run_that_nobody_accepted_is_not_called_what_was_accepted(lab: Lab, last: str) -> None:
    manifest = lab.manifest("open.yaml", "2024-01-06", "2024-01-07")
    run = lab.must("plan", manifest, *BY).data["run_id"]
    for verb in ("approve", "stage", "validate"):
        if last != "plan":
            lab.must(verb, run, *BY)
        if verb == last:
            break
    ended = lab.do("verify", run)
    found = json.loads(ended.said)
    assert (ended.code, found["error"]["code"]) == (3, "approval-missing")
    assert (found["data"]["accepted"], found["data"]["intact"]) == (False, True)
    drawn = _drawn(lab, "verify", run)
    assert drawn.exit_code == 3
    heading = "nobody has accepted this run; what is recorded of it is as it was written"
    assert drawn.stdout.startswith(heading)
    assert "what was accepted" not in drawn.stdout
    assert f"nobody has accepted {run}" in drawn.stderr

    edit_rows(lab, "pipeline_run", _set("plan", _rate, run_id=run))
    edited = _drawn(lab, "verify", run)
    assert edited.exit_code == 3
    assert edited.stdout.startswith(heading.replace("is as it", "is NOT as it"))
    assert "not what was recorded" in edited.stderr


@pytest.mark.parametrize("content", [b"garbage" * 40, b"", None], ids=["garbage", "empty", "cut"])
def test_a_diff_names_the_data_file_that_it_cannot_read(lab: Lab, content: bytes | None) -> None:
    path = data_file(lab)
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    said = lab.do("diff", lab.run)
    assert (said.code, said.error["code"]) == (2, "damaged-file")
    assert path.name in said.error["problem"]


class Counted(NullProgress):
    """Notes of each counted step how much was to be done, and how much was."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}

    def count(self, label: str, total: int, unit: str) -> None:
        self.steps[f"{label} {unit}"] = [total, 0]

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        if self.steps:
            self.steps[next(reversed(self.steps))][1] += amount


@pytest.mark.req("O6")
def test_verbs_count_the_work_that_they_can_count(lab: Lab) -> None:
    planned = lab.must("plan", lab.manifest("open.yaml", "2024-01-06", "2024-01-07"), *BY)
    other = planned.data["run_id"]
    lab.must("approve", other, *BY)
    lab.must("stage", other, *BY)
    opened, counted = Adapters.open(lab.folder, None, None), Counted()
    project = Project(LabWiring(opened.folder, opened.profile, counted, opened.profile_name))
    project.verify(lab.run, deep=True)
    project.audit_verify()
    project.diff(other)
    project.reconcile(TARGET, TARGET)
    project.recover(None, by="ana")
    project.cancel(other, by="ana", reason="no more")
    project.maintain(by="ana", erasure="asked for", product=TARGET)
    assert counted.steps == {
        "verify, reading data files": [3, 3],
        "audit verify, signatures of runs": [2, 2],
        "diff files": [2, 2],
        "reconcile states of the table": [2, 2],
        "recover open runs": [1, 1],
        "maintain, dropping shadows": [2, 2],
        "maintain, files of runs": [1, 1],
        "maintain, expiring pins of tables": [1, 1],
    }
