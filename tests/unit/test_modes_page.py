"""docs/modes.md: each cell of its matrix is a test that exists, or a refusal with its reason."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.domain.manifest import PublishMode
from tests.req_plugin import read_titles

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
FORMATS = ("1", "2", "3")
REFUSED = "refused: "


class Cell(NamedTuple):
    """What the page says of a mode on a table format: tests, or why it is refused."""

    row: str
    proves: str
    format: str
    tests: tuple[str, ...]
    refusal: str


def cells() -> list[Cell]:
    matrix = PAGE.split("| mode | proves |")[1].splitlines()[2:]
    found = []
    for line in matrix:
        if not line.startswith("|"):
            break
        row, proves, *said = (part.strip() for part in line.strip("|").split(" | "))
        assert len(said) == len(FORMATS), line
        for version, text in zip(FORMATS, said, strict=True):
            refusal = text.removeprefix(REFUSED) if text.startswith(REFUSED) else ""
            found.append(Cell(row, proves, version, tuple(re.findall(r"`([^`]+)`", text)), refusal))
    return found


@cache
def collected(file: str) -> dict[str, set[str]]:
    """Give the tests of a file as pytest collects them, and the requirements that each proves."""
    code = (
        "import json, sys, pytest\n"
        "class See:\n"
        "    def pytest_collection_finish(self, session):\n"
        "        found = {i.nodeid: [str(a) for m in i.iter_markers('req') for a in m.args]"
        " for i in session.items}\n"
        "        print('FOUND', json.dumps(found))\n"
        f"sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', {file!r}],"
        " plugins=[See()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("FOUND")] or [done.stdout]
    assert line.startswith("FOUND"), done.stdout + done.stderr
    import json

    found: dict[str, list[str]] = json.loads(line.removeprefix("FOUND"))
    return {test: set(ids) for test, ids in found.items()}


@pytest.mark.req("U1", "U1b", "U2", "U3", "U4", "U5", "U6", "U7", "U8", "U9")
def test_every_cell_names_tests_that_exist_and_prove_it_or_says_why_not() -> None:
    wrong = []
    for cell in cells():
        where = f"{cell.row}, format {cell.format}"
        if not cell.tests and not cell.refusal:
            wrong.append(f"{where}: says nothing")
        for test in cell.tests:
            proven = collected(test.partition("::")[0]).get(test)
            if proven is None:
                wrong.append(f"{where}: there is no {test}")
            elif cell.proves not in proven:
                wrong.append(f"{where}: {test} is not marked as proof of {cell.proves}")
    assert wrong == []


def test_a_test_that_names_its_format_stands_in_its_column() -> None:
    named = [
        (cell.format, found.group(1))
        for cell in cells()
        for test in cell.tests
        if (found := re.search(r"\[(\d)\]$", test))
    ]
    assert named
    assert [pair for pair in named if pair[0] != pair[1]] == []


def test_the_matrix_has_a_row_for_each_mode_and_each_requirement() -> None:
    found = cells()
    rows = {cell.row.split("`")[1] for cell in found}
    assert set(get_args(PublishMode)) <= rows
    titles = read_titles(ROOT / "tests" / "requirements-ids.txt")
    wanted = {name for name in titles if re.fullmatch(r"U[1-9]b?", name)}
    assert wanted <= {cell.proves for cell in found}


def test_the_page_says_of_each_mode_which_product_it_fits() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| (follow|pinned|both) \|", PAGE, re.MULTILINE))
    fits = publish_modes.PUBLICATION_BY_MODE
    assert said == fits | {"shadow_only": "both"}


def test_every_mode_says_what_it_does() -> None:
    assert set(publish_modes.MODE_MEANINGS) == set(get_args(PublishMode))
