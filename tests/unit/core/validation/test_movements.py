"""The gate on commits elsewhere: whose count, whose do not, and what the log keeps of others."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.validation.movements import (
    check_only_shadow_written,
    describe_movements,
    describe_range,
    describe_secret_search,
)
from lakehouse_backfill.domain.tables.table import CatalogMovements, TableMovement
from tests.support.examples.plans import a_plan, with_fields

PLAN = a_plan()
TARGET = PLAN.resolved.target.table


def _moved(
    table: str, application: str = "", made_for: str = "", commits: int = 1
) -> TableMovement:
    return TableMovement(
        table=table, writer=f"spark {application}", application=application, made_for=made_for,
        commits=commits, operations=("append",), last_snapshot_id=9,
    )  # fmt: skip


def _seen(*moved: TableMovement) -> CatalogMovements:
    shadow = _moved(PLAN.shadow_table, "app-1", PLAN.run_id)
    return CatalogMovements(looked_at=3, unreadable=(), is_whole=True, moved=(shadow, *moved))


@pytest.mark.req("E6")
@pytest.mark.parametrize(
    ("moved", "this_process", "is_shared", "passes"),
    [
        pytest.param(_moved(TARGET, "app-1"), "", False, False, id="target"),
        pytest.param(_moved(TARGET, "app-2"), "app-2", False, False, id="by the checks"),
        pytest.param(_moved("a.other", "app-1"), "", False, False, id="another table"),
        pytest.param(_moved("a.other", "app-1"), "", True, True, id="another, of a shared server"),
        pytest.param(_moved(TARGET, "app-1"), "", True, False, id="target, by a shared server"),
        pytest.param(_moved(TARGET, "app-3"), "app-2", False, True, id="another application"),
        pytest.param(_moved(TARGET), "", False, True, id="an unnamed writer"),
        pytest.param(_moved(TARGET, "app-1", "bf-2"), "", False, True, id="another run"),
    ],
)
def test_commits_of_the_own_application_beside_the_shadow_close_the_gate(
    moved: TableMovement, this_process: str, is_shared: bool, passes: bool
) -> None:
    check = check_only_shadow_written(PLAN, _seen(moved), this_process, is_shared=is_shared)
    assert (check.passed, check.blocking, check.waivable) == (passes, True, True)
    assert (str(moved) in check.detail) is not passes


def test_without_a_named_application_the_gate_says_that_it_compared_nothing() -> None:
    seen = CatalogMovements(looked_at=1, unreadable=(), is_whole=True, moved=(_moved(TARGET),))
    check = check_only_shadow_written(PLAN, seen, "", is_shared=False)
    assert (check.passed, check.observed) == (True, 0)
    assert "cannot be assigned" in check.detail


def test_another_engine_that_wrote_the_shadow_is_not_judged() -> None:
    external = with_fields(PLAN, resolved__manifest__transform__writer="external")
    found = _seen(_moved(TARGET, "app-1"))
    check = check_only_shadow_written(external, found, "", is_shared=False)
    assert (check.passed, "not judged" in check.detail) == (True, True)


def test_the_log_keeps_what_others_committed_within_bounds_and_says_what_was_read() -> None:
    found = _seen(*(_moved(f"a.t{number}", commits=2) for number in range(25)))
    kept = describe_movements(PLAN, found.model_copy(update={"unreadable": ("a.x",)}))
    assert (len(kept["moved"]), kept["more_moved"]) == (20, 5)
    assert kept["moved"][0] == {
        "table": "a.t0", "writer": "spark ", "commits": 2, "operations": ["append"],
        "last_snapshot_id": 9,
    }  # fmt: skip
    assert describe_range(kept) == (
        "3 tables, all of the catalog beside the toolkit's own; not readable: a.x; 5 more movements"
    )


@pytest.mark.parametrize(
    ("rows", "share"),
    [((7, 1_000), ", and inside longer texts"), ((1_001, 5), " in 1,005 of 1,006"), ((), "")],
)
def test_the_gate_says_in_which_rows_secrets_were_looked_for(
    rows: tuple[int, ...], share: str
) -> None:
    text = describe_secret_search(PLAN, rows)
    assert text.startswith("values of secrets were looked for as whole texts in all rows")
    assert text.endswith(share)


def test_rows_of_another_engine_were_not_searched_for_secrets() -> None:
    external = with_fields(PLAN, resolved__manifest__transform__writer="external")
    assert "were not looked for" in describe_secret_search(external, (5,))
