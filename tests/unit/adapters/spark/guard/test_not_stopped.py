"""What docs/side-effects.md says that no layer stops passes indeed: the page promises no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark.guarded import try_lines

#: Each writes `{file}`, as somebody would who means to.
ATTACKS = {
    "the guard's own objects": (
        "import sys; g = next(m for n, m in list(sys.modules.items()) "
        "if n.endswith('process_guard')).GUARD; g.is_on = False; "
        "open('{file}', 'w').close(); g.is_on = True"
    ),
    "the name of another file": (
        "exec(compile(\"open('{file}', 'w').close()\", '/py4j/other.py', 'exec'))"
    ),
}


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_an_attacker_passes(tmp_path: Path, in_worker: bool) -> None:
    files = [tmp_path / str(number) for number in range(len(ATTACKS))]
    lines = [
        line.replace("{file}", str(file))
        for line, file in zip(ATTACKS.values(), files, strict=True)
    ]
    found = try_lines(tmp_path / "project", lines, in_worker=in_worker)
    assert [one.attempts for one in found] == [()] * len(found)
    assert [file.exists() for file in files] == [True] * len(files)


def test_a_secret_that_nothing_marks_is_read(tmp_path: Path) -> None:
    key = tmp_path / "masks.key"
    key.write_text("planted-4711")
    lines = ["import os; return os.environ['LHB_PLAIN']", f"return open('{key}').read()"]
    environment = {"LHB_PLAIN": "planted-4711"}
    found = try_lines(tmp_path / "project", lines, environment=environment)
    assert [(one.attempts, one.result) for one in found] == [((), "'planted-4711'")] * 2
