"""Custom mappings of a project run in the process that plans, so only pure code is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system.project_code import load_mapping
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.errors import ConfigError, WriteForbidden

pytestmark = pytest.mark.req("P4")
NAMED = Upstream(product="s.up", mapping="custom", file="jobs/map.py", function="affected")


def write(folder: Path, text: str) -> None:
    path = folder / "jobs" / "map.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_function_is_called_with_the_label(tmp_path: Path) -> None:
    write(
        tmp_path,
        "from datetime import date, timedelta\n\n"
        "def affected(label):\n"
        "    day = date.fromisoformat(label)\n"
        "    return [str(day + timedelta(days=n)) for n in range(2)]\n",
    )
    assert load_mapping(tmp_path, NAMED)("2024-02-29") == ("2024-02-29", "2024-03-01")


@pytest.mark.parametrize(
    "line",
    [
        "import os", "from pathlib import Path", "open('x', 'w')", "eval('1')",
        "__import__('os')", "().__class__.__base__.__subclasses__()", "getattr(1, 'real')",
        "import datetime, socket", "from . import other", "exit(0)", "license()",
        "(n for n in ()).gi_frame.f_back", "match 1:\n    case object(__class__=found): pass",
    ],
)  # fmt: skip
def test_code_that_could_reach_the_world_is_refused(tmp_path: Path, line: str) -> None:
    write(tmp_path, f"{line}\n\ndef affected(label):\n    return [label]\n")
    with pytest.raises(WriteForbidden, match=r"jobs/map\.py:[12] uses"):
        load_mapping(tmp_path, NAMED)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("import calendar; calendar.sys.modules", "has no attribute 'sys'"),
        ("import re; re.enum.sys", "has no attribute 'enum'"),
        ("from calendar import sys", "cannot import name 'sys'"),
        ("from collections import _sys", "cannot import name '_sys'"),
        ("from functools import update_wrapper", "cannot import name 'update_wrapper'"),
    ],
)
def test_a_known_module_gives_none_of_those_that_it_imports(
    tmp_path: Path, line: str, problem: str
) -> None:
    write(tmp_path, f"{line}\n\ndef affected(label):\n    return [label]\n")
    with pytest.raises(ConfigError, match=problem):
        load_mapping(tmp_path, NAMED)


def test_a_known_module_keeps_what_is_its_own(tmp_path: Path) -> None:
    write(
        tmp_path,
        "from __future__ import annotations\n"
        "import calendar, collections.abc, functools, math, re\n"
        "from collections.abc import Iterable\n\n"
        "@functools.lru_cache\n"
        "def affected(label: str) -> Iterable[str]:\n"
        "    last = calendar.monthrange(2024, 2)[1]\n"
        "    assert isinstance([label], collections.abc.Sequence)\n"
        "    return [re.sub('a', 'b', label), str(math.floor(last))]\n",
    )
    assert load_mapping(tmp_path, NAMED)("a") == ("b", "29")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def other(label):\n    return []\n", "has no function affected"),
        ("def affected(label:\n", "is no Python"),
        ("def affected(label):\n    return label\n", "no list of labels"),
        ("def affected(label):\n    return [1]\n", "not only texts"),
        ("def affected(label):\n    return [1 / 0]\n", "fails for a: division by zero"),
        ("def affected(label):\n    raise SystemExit(0)\n", "fails for a: 0"),
        ("def affected(label):\n    yield 1 / 0\n", "fails for a: division by zero"),
        ("FOUND = 1 / 0\n", "cannot be loaded: division by zero"),
    ],
    ids=["no function", "no Python", "a text", "numbers", "fails", "ends", "fails late", "load"],
)
def test_a_wrong_mapping_is_named(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=problem):
        load_mapping(tmp_path, NAMED)("a")


def test_a_file_outside_of_the_project_is_refused(tmp_path: Path) -> None:
    outside = NAMED.model_copy(update={"file": "../map.py"})
    (tmp_path / "map.py").write_text("def affected(label):\n    return []\n", encoding="utf-8")
    (tmp_path / "p").mkdir()
    with pytest.raises(ConfigError, match="is no file of the project"):
        load_mapping(tmp_path / "p", outside)
