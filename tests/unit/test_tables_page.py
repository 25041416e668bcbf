"""The page of the kinds of tables names tests that exist, and leaves no cell open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables.md"
_TEST = re.compile(r"\[(test_\w+)\]\(([^)]+)\)")


def rows() -> dict[str, list[str]]:
    """Give the cells of each kind of table."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text.split("| kind of table |")[1].split("\n\n")[0].splitlines()[2:]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {kind: rest for kind, *rest in cells}


@pytest.mark.req("U16")
def test_each_cell_of_the_matrix_names_a_test_another_kind_or_a_refusal() -> None:
    found = rows()
    assert len(found) > 10
    for kind, cells in found.items():
        is_refused = cells[0].startswith("refused: ")
        for place, cell in enumerate(cells):
            if not cell:
                assert is_refused, kind
                continue
            if cell.startswith("as "):
                assert _TEST.search(found[cell[3:]][place]), (kind, cell)
                continue
            named = _TEST.findall(cell)
            assert named, (kind, cell)
            for name, file in named:
                code = (PAGE.parent / file).read_text(encoding="utf-8")
                assert f"def {name}(" in code, (kind, name)
