"""The archived code of a run: put back byte for byte, whatever the project's files say (D6)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.system.project_code import CodeArchive
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ApprovalMissing, Tampered
from tests.support.examples.plans import a_plan

pytestmark = pytest.mark.req("D6")
JOB, MODULE = b"import rates\r\n# \xc3\xa4\n", b"RATE = 2\n"


def mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plan_of(job: bytes = JOB, module: bytes = MODULE) -> Plan:
    plan = a_plan()
    file = plan.resolved.manifest.transform.file
    files = {file: mark(job), "jobs/rates.py": mark(module), "expectations/a.json": "e" * 64}
    resolved = plan.resolved.model_copy(update={"code_hash": mark(job), "files": files})
    return plan.model_copy(update={"resolved": resolved})


def kept(plan: Plan, *texts: bytes | None) -> list[dict[str, Any]]:
    names = (plan.resolved.manifest.transform.file, "jobs/rates.py")
    return [
        {"file": name, "sha256": "", "text": None if text is None else text.decode()}
        for name, text in zip(names, texts, strict=True)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_code_is_put_back_as_it_was_planned_and_nothing_else(tmp_path: Path) -> None:
    plan = plan_of()
    archive = CodeArchive(tmp_path / "p", tmp_path / "code", lambda _: kept(plan, JOB, MODULE))
    folder = archive.restore_folder(plan)
    job = plan.resolved.manifest.transform.file
    assert contents(folder) == {job: JOB, "jobs/rates.py": MODULE}
    assert archive.restore_folder(plan) == folder


def test_files_of_one_name_are_told_apart_by_their_content(tmp_path: Path) -> None:
    """The archive also holds the code that is named for old rows, under the names of then."""
    new, old = plan_of(), plan_of(module=b"")
    both = [*kept(new, JOB, MODULE), *kept(old, JOB, b"")]
    archive = CodeArchive(tmp_path / "p", tmp_path / "code", lambda _: both)
    job = new.resolved.manifest.transform.file
    for plan, module in ((new, MODULE), (old, b"")):
        found = contents(archive.restore_folder(plan))
        assert found == {job: JOB, "jobs/rates.py": module}


def test_a_file_that_was_edited_where_it_was_put_back_is_put_back_again(tmp_path: Path) -> None:
    plan = plan_of()
    archive = CodeArchive(tmp_path / "p", tmp_path / "code", lambda _: kept(plan, JOB, MODULE))
    (archive.restore_folder(plan) / "jobs/rates.py").write_bytes(b"RATE = 3\n")
    assert contents(archive.restore_folder(plan))["jobs/rates.py"] == MODULE


def test_other_code_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, other = plan_of(), plan_of(module=b"RATE = 3\n")
    found = [
        CodeArchive(tmp_path, tmp_path / "code", lambda _, p=plan, m=module: kept(p, JOB, m))
        .restore_folder(plan)
        for plan, module in ((one, MODULE), (other, b"RATE = 3\n"))
    ]  # fmt: skip
    assert len({*found}) == 2


def test_what_is_not_kept_is_taken_from_the_project_only_if_it_is_the_same(tmp_path: Path) -> None:
    plan = plan_of()
    path = tmp_path / "jobs" / "rates.py"
    path.parent.mkdir()
    path.write_bytes(MODULE)
    archive = CodeArchive(tmp_path, tmp_path / "code", lambda _: kept(plan, JOB, None))
    assert contents(archive.restore_folder(plan))["jobs/rates.py"] == MODULE
    path.write_bytes(b"RATE = 3\n")
    later = CodeArchive(tmp_path, tmp_path / "more", lambda _: kept(plan, JOB, None))
    with pytest.raises(ApprovalMissing, match=r"jobs/rates\.py as .* is not kept"):
        later.restore_folder(plan)


@pytest.mark.parametrize("name", ["../out.py", "jobs/../../out.py", "/tmp/out.py"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    plan = plan_of()
    files = {**plan.resolved.files, name: mark(MODULE)}
    resolved = plan.resolved.model_copy(update={"files": files})
    plan = plan.model_copy(update={"resolved": resolved})
    texts = [*kept(plan, JOB, MODULE), {"file": name, "sha256": "", "text": MODULE.decode()}]
    archive = CodeArchive(tmp_path / "p", tmp_path / "code", lambda _: texts)
    with pytest.raises(Tampered, match="names code outside the project"):
        archive.restore_folder(plan)
    assert list(tmp_path.iterdir()) == []


def test_a_kept_text_that_was_edited_is_never_executed(tmp_path: Path) -> None:
    plan = plan_of()
    archive = CodeArchive(
        tmp_path, tmp_path / "code", lambda _: kept(plan, JOB, b"RATE = 'edited'\n")
    )
    with pytest.raises(ApprovalMissing):
        archive.restore_folder(plan)
