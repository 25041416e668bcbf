"""Rules of the look at the machine, and of its scripts being readable by an old Python."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
OLD_SYNTAX = ("setup.py", "bootstrap/machine.py", "bootstrap/stamp.py", "bootstrap/__init__.py")
NEWER = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.YieldFrom)


def check(root: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Run the check of a made-up clone, with nothing but `path` to find programs on."""
    (root / "tools").symlink_to(TOOLS)
    for name in ("requirements.lock", "pyproject.toml", "lakehouse_backfill"):
        (root / name).symlink_to(TOOLS.parent / name)
    code = (
        "import sys; sys.path.insert(0, 'tools'); from bootstrap import machine;"
        "found = machine.faults(sys.argv[1], sys.executable); print(machine.report(found))"
    )
    env = {**os.environ, "PATH": path, "HOME": str(root)}
    command = [sys.executable, "-c", code, str(root)]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)


def test_every_fault_is_listed_at_once_with_its_fix(tmp_path: Path) -> None:
    root = tmp_path / "a,clone"
    root.mkdir()
    lines = check(root, str(root)).stdout.splitlines()
    assert lines[0] == "set-up: 3 fault(s) on this machine, nothing was changed"
    faults = [line for line in lines if line.startswith("  fault: ")]
    assert [word for line in faults for word in ("a,clone", "bash", "make") if word in line] == [
        "a,clone",
        "bash",
        "make",
    ]
    assert [line.startswith("    fix: ") for line in lines[2::2]] == [True] * 3


def test_a_fit_machine_has_no_fault(tmp_path: Path) -> None:
    shown = check(tmp_path, os.environ["PATH"]).stdout
    assert shown.splitlines() == ["set-up: 0 fault(s) on this machine, nothing was changed"]


@pytest.mark.parametrize("name", OLD_SYNTAX)
def test_an_old_python_can_read_the_entry(name: str) -> None:
    tree = ast.parse((TOOLS / name).read_text(encoding="utf-8"), feature_version=(3, 7))
    newer = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, NEWER)]
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    newer += ["[*x]" for node in lists if any(isinstance(e, ast.Starred) for e in node.elts)]
    typed = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.returns or any(argument.annotation for argument in node.args.args))
    ]
    assert (newer, typed) == ([], [])


@pytest.mark.parametrize("python", ["python2.7", "python3.6", "python3.8"])
def test_an_old_python_says_which_one_is_missing_or_hands_over(python: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{python.removeprefix('python')}*/bin/python"))
    usual = Path("/usr/bin") / python
    candidates = [*found, *([usual] if usual.exists() else [])]
    for old in candidates:  # Machines have few old ones; the syntax is tested everywhere above.
        command = [str(old), str(TOOLS / "setup.py"), "--check"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "SyntaxError" not in shown.stderr
        assert ("this machine is fit" in shown.stdout) or ("fault:" in shown.stderr)
