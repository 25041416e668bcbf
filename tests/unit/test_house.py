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


TEST, MOCK = "tests/unit/test_it.py", "imports a mock (write a fake of the port)"
FOUND = {
    "a folder with too many modules": (
        dict.fromkeys(
            [f"{PACKAGE}/x.py", *(f"{PACKAGE}/core/{name}.py" for name in "abcdefghijklm")], ""
        ),
        f"{PACKAGE}/core:1: 13 modules, 12 allowed (make a folder of a part of them)",
    ),
    "a public class name that exists twice": (
        {f"{PACKAGE}/{name}.py": "class Plan: ...\nclass _Part: ...\n" for name in "ab"},
        f"{PACKAGE}/b.py:1: Plan is also a class of {PACKAGE}/a.py (rename)",
    ),
    "many parameters": (
        {f"{PACKAGE}/a.py": "def act(self, a, b, c, *, d, e, f, g): ...\n"},
        f"{PACKAGE}/a.py:1: act has 7 parameters, the aim is 6",
    ),
    "a long test module": (
        {"tests/test_a.py": "x = 1\n" * 701},
        "tests/test_a.py:701: 701 lines, 700 allowed (split it by what it tests)",
    ),
    "a long readme": (
        {"README.md": "line\n" * 151},
        "README.md:151: 151 lines, 150 allowed (move to docs/)",
    ),
    "unittest.mock": ({TEST: "import unittest.mock\n"}, f"{TEST}:1: {MOCK}"),
    "mock of unittest": ({TEST: "from unittest import mock\n"}, f"{TEST}:1: {MOCK}"),
    "a part of a mock": ({TEST: "from unittest.mock import patch\n"}, f"{TEST}:1: {MOCK}"),
    "mock": ({TEST: "import mock\n"}, f"{TEST}:1: {MOCK}"),
}


@pytest.mark.parametrize(("files", "finding"), FOUND.values(), ids=FOUND)
def test_what_is_found_is_named_with_its_place(tmp_path: Path, files, finding: str) -> None:
    assert [str(one) for one in check_house.findings(clone(tmp_path, files))] == [finding]


def test_a_small_module_with_one_importer_is_listed(tmp_path: Path) -> None:
    by_name = f"import {PACKAGE}.part\n"
    files = {f"{PACKAGE}/part.py": "X = 1\n", f"{PACKAGE}/whole.py": by_name}
    found = check_house.findings(clone(tmp_path, files))
    assert [(finding.problem, finding.is_break) for finding in found] == [
        (f"small, and imported by {PACKAGE}/whole.py alone (fold it into that)", False)
    ]
    clone(tmp_path, {f"{PACKAGE}/other.py": by_name})
    assert check_house.findings(tmp_path) == []
