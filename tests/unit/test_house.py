"""Rules of `tools/check_house.py`, each on a small made-up clone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_house.py"
spec = importlib.util.spec_from_file_location("check_house", TOOL)
assert spec is not None
assert spec.loader is not None
check_house = importlib.util.module_from_spec(spec)
sys.modules["check_house"] = check_house
spec.loader.exec_module(check_house)

PACKAGE = "lakehouse_backfill"


def clone(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def function(lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param(
            "core/planning/plan.py", "x = 1\n" * 501, "501 lines, 500 allowed", id="module"
        ),
        pytest.param("core/planning/plan.py", function(51), "long has 51 lines", id="function"),
        pytest.param(
            "core/planning/plan.py", "s.sparkContext\n", ".sparkContext", id="spark context"
        ),
        pytest.param(
            "adapters/spark/dataframes.py", "frame._jdf.plan()\n", "._jdf", id="private frame"
        ),
        pytest.param("adapters/spark/dataframes.py", "frame.rdd.map(f)\n", ".rdd", id="rdd"),
        pytest.param("core/utils.py", "", "named utils", id="vague module"),
        pytest.param("common/rules.py", "", "named common", id="vague package"),
        pytest.param("core/carrying.py", "", "carrying is a gerund", id="activity"),
        pytest.param("core/landed.py", "", "landed is a gerund or participle", id="participle"),
        pytest.param(
            "core/a.py", "class A:\n" + "    x = 1\n" * 250, "A has 251 lines", id="class"
        ),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, name: str, text: str, expected: str) -> None:
    found = check_house.findings(clone(tmp_path, {f"{PACKAGE}/{name}": text}))
    assert len(found) == 1
    assert found[0].place == f"{PACKAGE}/{name}"
    assert expected in found[0].problem
    assert check_house.main([str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("core/planning/plan.py", "x = 1\n" * 400, id="a full module"),
        pytest.param(
            "adapters/spark/session/session.py", "s._jvm\ns.sparkContext\n", id="the door keeper"
        ),
        pytest.param("core/commonness.py", "", id="a name that only contains one"),
        pytest.param("domain/plan.py", "text = '.rdd'\n", id="a door in a text"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, name: str, text: str) -> None:
    assert check_house.findings(clone(tmp_path, {f"{PACKAGE}/{name}": text})) == []


def test_a_function_above_the_aim_is_listed_and_passes(tmp_path, capsys) -> None:
    clone(tmp_path, {f"{PACKAGE}/core/planning/plan.py": function(31)})
    assert check_house.main([str(tmp_path)]) == 0
    assert (
        "aim: lakehouse_backfill/core/planning/plan.py:1: long has 31 lines"
        in capsys.readouterr().out
    )


def test_a_folder_with_too_many_modules_is_found(tmp_path: Path) -> None:
    names = [f"{PACKAGE}/core/{name}.py" for name in "abcdefghijklm"]
    found = check_house.findings(clone(tmp_path, dict.fromkeys([*names, f"{PACKAGE}/x.py"], "")))
    assert [str(finding) for finding in found] == [
        f"{PACKAGE}/core:1: 13 modules, 12 allowed (make a folder of a part of them)"
    ]


def test_a_public_class_name_that_exists_twice_is_found(tmp_path: Path) -> None:
    files = {f"{PACKAGE}/{name}.py": "class Plan: ...\nclass _Part: ...\n" for name in "ab"}
    found = check_house.findings(clone(tmp_path, files))
    assert [finding.problem for finding in found] == [
        f"Plan is also a class of {PACKAGE}/a.py (rename)"
    ]


def test_a_small_module_with_one_importer_is_listed(tmp_path: Path) -> None:
    by_name = f"import {PACKAGE}.part\n"
    files = {f"{PACKAGE}/part.py": "X = 1\n", f"{PACKAGE}/whole.py": by_name}
    found = check_house.findings(clone(tmp_path, files))
    assert [(finding.problem, finding.is_break) for finding in found] == [
        (f"small, and imported by {PACKAGE}/whole.py alone (fold it into that)", False)
    ]
    clone(tmp_path, {f"{PACKAGE}/other.py": by_name})
    assert check_house.findings(tmp_path) == []


def test_many_parameters_are_listed(tmp_path: Path) -> None:
    text = "def act(self, a, b, c, *, d, e, f, g): ...\n"
    found = check_house.findings(clone(tmp_path, {f"{PACKAGE}/a.py": text}))
    assert [finding.problem for finding in found] == ["act has 7 parameters, the aim is 6"]


def test_a_long_test_module_is_found(tmp_path: Path) -> None:
    found = check_house.findings(clone(tmp_path, {"tests/test_a.py": "x = 1\n" * 701}))
    assert [finding.problem for finding in found] == [
        "701 lines, 700 allowed (split it by what it tests)"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import unittest.mock\n",
        "from unittest import mock\n",
        "from unittest.mock import patch\n",
        "import mock\n",
    ],
)
def test_a_mock_in_a_test_is_found(tmp_path: Path, text: str) -> None:
    found = check_house.findings(clone(tmp_path, {"tests/unit/test_it.py": text}))
    assert [str(finding) for finding in found] == [
        "tests/unit/test_it.py:1: imports a mock (write a fake of the port)"
    ]


def test_a_long_readme_is_found(tmp_path: Path) -> None:
    found = check_house.findings(clone(tmp_path, {"README.md": "line\n" * 151}))
    assert [finding.problem for finding in found] == ["151 lines, 150 allowed (move to docs/)"]
