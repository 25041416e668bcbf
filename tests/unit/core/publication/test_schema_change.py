"""A declared change of columns from plan to publication and back, over fakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakehouse_backfill.core.comparison.diff import candidate_request
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.target.publish_modes import adopt_request
from lakehouse_backfill.core.publication.rollback import plan_rollback, remaining_column_changes
from lakehouse_backfill.domain.plan import ChosenWritePath
from lakehouse_backfill.domain.tables.schema_change import SchemaStep
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.fakes.steps import published_run, staged_run, world

NOTE = {"add": "note", "type": "string"}
STEP = SchemaStep(add="note", type="string")


def changing(*change: dict[str, Any]) -> Any:
    return declared(target={"schema_change": change})


@pytest.mark.req("U1")
def test_the_shadow_gets_the_columns_before_its_first_chunk() -> None:
    where, found = world()
    plan = found.runs.plan(staged_run(found, changing(NOTE)))
    assert where.tables[plan.shadow_table].properties["columns"] == "add note string"
    request = adopt_request(plan, 1, "token", {}, {})
    assert (request.schema_change, request.base_schema_id) == ((STEP,), 0)
    shadow = where.describe(plan.shadow_table)
    assert candidate_request(found, plan, shadow.snapshot_id, 5).change == (STEP,)


@pytest.mark.req("U1")
def test_without_a_declared_change_the_shadow_keeps_its_columns() -> None:
    where, found = world()
    plan = found.runs.plan(staged_run(found, changing()))
    assert "columns" not in where.tables[plan.shadow_table].properties
    assert "schema_change" not in plan.model_dump_json()


@pytest.mark.req("U1")
def test_where_rows_are_written_anew_it_is_refused_when_planned() -> None:
    by_rows = ChosenWritePath(way="rewrite", why="Spark Connect")
    found = replace(context(lake()), choose_write_path=lambda table, scope: by_rows)
    with pytest.raises(Unsupported, match="commits carry no change of columns"):
        make_plan(found, changing(NOTE), "bob", None)
    assert make_plan(found, changing(), "bob", None).way == by_rows
    by_java = ChosenWritePath(way="java", why="format 3")
    found = replace(found, choose_write_path=lambda table, scope: by_java)
    assert make_plan(found, changing(NOTE), "bob", None).way == by_java


@pytest.mark.req("U12")
def test_a_rollback_says_which_columns_stay() -> None:
    found = context(lake())
    published_run(found, changing(NOTE))
    assert remaining_column_changes(found, plan_rollback(found, PRODUCT, None, ())) == (
        "add note string",
    )
