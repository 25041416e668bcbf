"""A run that changes columns: the page, the plan and the rollback say so."""

from __future__ import annotations

import io
from typing import Any

import pytest

from lakehouse_backfill.cli.render import render_result as draw
from lakehouse_backfill.report.page import render_page
from tests.support.fakes.project import ANSWERS

CHANGE = [{"add": "note", "type": "string"}, {"rename": "v", "to": "amount"}]


@pytest.mark.req("O4")
def test_the_page_says_which_columns_change_and_how_many_rows_hold_a_value(
    document: dict[str, Any],
) -> None:
    before = render_page(document)
    document["plan"]["resolved"]["manifest"]["target"]["schema_change"] = CHANGE
    document["validation"]["diff"]["added_columns"] = [{"name": "note", "rows": 1234}]
    page = render_page(document)
    assert "Columns of the table: add note string, rename v to amount" in page
    assert "New columns take no part in the comparison of rows." in page
    assert "1,234" in page.split("take no part in the comparison")[1].split("</table>")[0]
    assert "Columns of the table" not in before
    assert "Rows with a value" not in before


def drawn(command: str, data: dict[str, Any]) -> str:
    page = io.StringIO()
    draw(command, data, page)
    return " ".join(page.getvalue().split())


def test_commands_name_the_columns_that_change_and_those_that_stay() -> None:
    steps = ["add note string", "rename v to amount"]
    plan = drawn("plan", {**ANSWERS["plan"], "schema_change": steps})
    assert "columns add note string, rename v to amount" in plan
    diff = drawn("diff", {**ANSWERS["diff"], "added_columns": [{"name": "note", "rows": 3}]})
    assert "rows with a value" in diff.split("new columns")[1]
    assert "note 3" in diff
    back = drawn("rollback", {**ANSWERS["rollback"], "columns_stay": steps})
    assert "columns stay: add note string, rename v to amount; old rows read null" in back
