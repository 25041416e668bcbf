"""Causes and changed columns on the evidence page."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.domain.comparison.attribution import (
    CAUSE_CLASSES,
    Attribution,
    ExplainedRows,
    Factor,
    InputChange,
    PartitionCauses,
)
from lakehouse_backfill.domain.comparison.diff import DiffSample
from lakehouse_backfill.report.changes import CAUSE_MEANINGS
from lakehouse_backfill.report.page import render_page
from tests.support.fakes.project import ANSWERS
from tests.support.fakes.screen import drawn
from tests.unit.report.test_style import COLOURS, SIDES, STYLE_SHEET, contrast

SAMPLE = DiffSample(
    kind="changed", key={"id": 7, "dest": "<b>SJU</b>"}, old={"flights": 3}, new={"flights": 4}
)


def _group(cause: str, rows: int, *factors: Factor) -> ExplainedRows:
    return ExplainedRows.model_validate(
        {"cause": cause, "factors": factors, "rows": rows, "columns": {"flights": rows},
         "samples": (SAMPLE,)}
    )  # fmt: skip


def attribution() -> dict[str, Any]:
    """Two of five partitions, with every class in one of them."""
    late = Factor(cause="late_input", input="flights")
    every = tuple(_group(name, place + 1, Factor(cause="code"), late)
                  for place, name in enumerate(CAUSE_CLASSES))  # fmt: skip
    change = InputChange(
        input="flights", table="raw.flights", role="source", old_snapshot_id=1, new_snapshot_id=2,
        late_rows=1234, upstream_rows=0, deleted_rows=0, told_by="the key id",
    )  # fmt: skip
    parts = (
        PartitionCauses(
            partition="2013-02-15", changed_rows=36, basis="run", made_by="bf-7", groups=every,
            inputs=(change,), live=("snapshot 9 (overwrite by spark)",),
        ),
        PartitionCauses(
            partition="2013-02-16", changed_rows=4, basis="none", made_by=None,
            groups=(_group("unexplained", 4),), notes=("no run is known",),
        ),
    )  # fmt: skip
    return Attribution(
        run_id="bf-1", product="silver.a", old="silver.a@1", new="shadow@2", changed_rows=400,
        changed_partitions=5, sampled_rows=40, partitions=parts,
        at=datetime(2026, 3, 2, tzinfo=timezone.utc), seconds=1.5,
    ).data()  # fmt: skip


def named_attribution() -> dict[str, Any]:
    """One partition that no run made, by the code that the manifest names."""
    part = {
        "basis": "named", "made_by": None, "named_code": "jobs/old.py (job 0.9.0, code f00d)",
        "not_reproduced": 1,
    }  # fmt: skip
    found = attribution()
    return found | {"partitions": [found["partitions"][0] | part]}


def _causes(document: dict[str, Any]) -> str:
    return render_page(document).split('<section id="causes">')[1].split("</section>")[0]


@pytest.mark.req("Q5")
@pytest.mark.req("O4")
def test_the_page_draws_each_sampled_partition_and_says_what_was_not_looked_at(document) -> None:
    document["attribution"] = attribution()
    page = _causes(document)
    assert "40 of 400 changed rows (10.0 %) were looked at: those of 2 of 5 changed" in page
    assert "Nothing is said of the others." in page
    bars = re.findall(r'<div class="stack" role="img" aria-label="([^"]+)"', page)
    assert bars[0].startswith("2013-02-15: code 1 (2.8 %), late input 2 (5.6 %), ")
    assert bars[1] == "2013-02-16: unexplained 4 (100.0 %)"
    assert re.findall(r'style="flex:(\d+) 1 0"', page) == [*map(str, range(1, 9)), "4"]
    assert "1,234" in page
    assert "2013-02-16: no run is known" in page
    assert "changed on the table by snapshot 9" in page
    assert "&lt;b&gt;SJU" in page
    assert "<b>SJU" not in page


@pytest.mark.req("Q5")
def test_page_and_terminal_say_which_code_was_used_on_whose_word(document) -> None:
    document["attribution"] = named_attribution()
    page = _causes(document)
    assert "jobs/old.py (job 0.9.0, code f00d), named by the manifest" in page
    assert "2013-02-15: last written by snapshot 9" in page
    shown = drawn("diff", {**ANSWERS["diff"], "attribution": named_attribution()})
    assert "2013-02-15 was last written by snapshot 9" in " ".join(shown.split())


@pytest.mark.req("Q5")
def test_the_page_says_how_to_ask_and_when_nothing_differs(document: dict[str, Any]) -> None:
    assert "lakehouse-backfill diff" in _causes(document)
    document["attribution"] = attribution() | {"partitions": []}
    assert "No row differs" in _causes(document)


@pytest.mark.req("Q5")
def test_each_class_has_a_letter_of_its_own_beside_its_colour() -> None:
    assert tuple(CAUSE_MEANINGS) == CAUSE_CLASSES
    assert len({letter for letter, _ in CAUSE_MEANINGS.values()}) == len(CAUSE_CLASSES)
    assert all(f".k{place}{{" in STYLE_SHEET for place in range(1, len(CAUSE_CLASSES) + 1))


@SIDES
@pytest.mark.parametrize("place", range(1, 9))
def test_the_letters_can_be_read_on_their_grounds(place: int, side: int) -> None:
    assert contrast(COLOURS["ink"][side], COLOURS[f"k{place}"][side]) >= 4.5


@pytest.mark.req("Q5")
@pytest.mark.parametrize("width", ["60", "200"])
def test_the_terminal_shows_counts_partitions_inputs_and_notes(width, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    page = drawn("diff", {**ANSWERS["diff"], "attribution": attribution()})
    assert [line for line in page.splitlines() if len(line) > int(width)] == []
    text = " ".join(page.split())
    assert "causes, on 2 of 5 changed partitions with 40 of 400 changed rows (10%)" in text
    assert "nothing is said of the others" in text
    assert "2013-02-16: no run is known" in text
    assert "was also changed by snapshot 9 (overwrite by spark)" in text
    if width == "200":
        assert "code + late input of flights" in text
        assert re.search(r"2013-02-15 flights 1,?234 0 0 the key id", text)


@pytest.mark.req("Q5")
def test_the_terminal_says_when_there_is_nothing_to_attribute() -> None:
    empty = attribution() | {"partitions": [], "counts": {}}
    page = drawn("diff", {**ANSWERS["diff"], "attribution": empty})
    assert "nothing differs: there is nothing to attribute" in page


CHANGE = [{"add": "note", "type": "string"}, {"rename": "v", "to": "amount"}]


@pytest.mark.req("O4")
def test_the_page_says_which_columns_change_and_how_many_rows_hold_a_value(document) -> None:
    before = render_page(document)
    document["plan"]["resolved"]["manifest"]["target"]["schema_change"] = CHANGE
    document["validation"]["diff"]["added_columns"] = [{"name": "note", "rows": 1234}]
    page = render_page(document)
    assert "Columns of the table: add note string, rename v to amount" in page
    assert "New columns take no part in the comparison of rows." in page
    assert "1,234" in page.split("take no part in the comparison")[1].split("</table>")[0]
    assert "Columns of the table" not in before
    assert "Rows with a value" not in before


def _words(verb: str, data: dict[str, Any]) -> str:
    return " ".join(drawn(verb, data).split())


def test_commands_name_the_columns_that_change_and_those_that_stay() -> None:
    steps = ["add note string", "rename v to amount"]
    plan = _words("plan", {**ANSWERS["plan"], "schema_change": steps})
    assert "columns add note string, rename v to amount" in plan
    diff = _words("diff", {**ANSWERS["diff"], "added_columns": [{"name": "note", "rows": 3}]})
    assert "rows with a value" in diff.split("new columns")[1]
    assert "note 3" in diff
    back = _words("preview_rollback", {**ANSWERS["preview_rollback"], "columns_stay": steps})
    assert "columns stay: add note string, rename v to amount; old rows read null" in back
