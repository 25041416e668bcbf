"""Each kind of damage under each command: it is named, or was not needed, and there is a way out.

The table of docs/recovery.md has what is seen here: python -m tests.chaos.damages writes it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.damages import DAMAGES, PAGE, Damage, prepare, table_row
from tests.chaos.lab import Lab

#: What a command may end with: checks failed, an input is missing, tampered, conflict, unknown.
_EXPLAINED = {0, 2, 3, 4, 5}


@pytest.fixture(scope="module", autouse=True)
def _with_a_second_run(labs: list[Lab]) -> None:
    for lab in labs:
        lab.restore("published")
        prepare(lab)


@pytest.mark.req("X9", "T3", "O4", "V4", "C2", "E6")
@pytest.mark.parametrize("case", DAMAGES, ids=str)
def test_damage_is_named_by_each_command_that_meets_it(
    case: Damage, outcomes: dict[Any, Any]
) -> None:
    cells = outcomes[case].result()
    for command, cell in cells.items():
        assert cell.ended.code in _EXPLAINED, (command, cell.ended)
        if cell.ended.code:
            assert cell.is_named, (command, cell.ended)
            assert cell.ended.error["fix"], (command, cell.ended)
        for again in cell.after:
            assert again.code == 0 or "is at version 0 already" in again.said, (command, again)
    assert table_row(case, cells) in PAGE.read_text(encoding="utf-8").splitlines()
