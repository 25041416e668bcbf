"""Every file that decides is bound by its hash: also modules that are only imported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lakehouse_backfill.config.contracts import find_contract
from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.config.project_files import file_hash, hash_run_files, imported_modules
from lakehouse_backfill.errors import ConfigError, NotFound
from tests.support.examples.declarations import project

pytestmark = pytest.mark.req("M4")
JOB = "jobs/arrivals_daily/transform.py"


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_job_modules_and_suites_are_bound(tmp_path: Path) -> None:
    put(project(tmp_path), {JOB: "import jobs.shared.rates\n", "jobs/shared/rates.py": "R = 1\n"})
    manifest = load_manifest(tmp_path / "jobs/arrivals_daily/run.yaml", tmp_path)
    found = hash_run_files(tmp_path, manifest, find_contract(tmp_path, manifest.product))
    assert found == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("expectations/arrivals.json", JOB, "jobs/shared/rates.py")
    }


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("import jobs.a.one", ["jobs/a/__init__.py", "jobs/a/one.py", "jobs/a/two.py"]),
        ("from jobs.a import one", ["jobs/a/__init__.py", "jobs/a/one.py", "jobs/a/two.py"]),
        ("from beside import x", ["jobs/arrivals_daily/beside.py"]),
        ("def f():\n    import beside", ["jobs/arrivals_daily/beside.py"]),
        ("import os, json, pyspark", []),
        ("import outside", []),
        ("no python (", []),
    ],
    ids=["dotted", "from package", "beside", "late", "libraries", "link outside", "broken"],
)
def test_imports_are_followed_inside_the_project_only(tmp_path, job, expected) -> None:
    folder = put(
        tmp_path / "project",
        {
            JOB: job,
            "jobs/a/__init__.py": "",
            "jobs/a/one.py": "from .two import x\nfrom . import one\n",
            "jobs/a/two.py": "import jobs.a.one\n",  # a circle ends
            "jobs/arrivals_daily/beside.py": "x = 1\n",
        },
    )
    put(tmp_path, {"outside.py": ""})
    (folder / "outside.py").symlink_to(tmp_path / "outside.py")
    assert list(imported_modules(folder, JOB)) == expected


def test_a_file_that_is_absent_or_outside_has_no_hash(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"jobs/x\.py does not exist"):
        file_hash(tmp_path, "jobs/x.py")
    with pytest.raises(ConfigError, match="lies outside"):
        file_hash(tmp_path, "../x.py")
