"""Columns that were renamed since the newest snapshot: a plan would compare other columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DateType

from tests.chaos.lab import BY, TARGET, Lab


def rename(update: UpdateSchema) -> None:
    update.rename_column("v", "amount")


def add_again(update: UpdateSchema) -> None:
    update.add_column("later", DateType())


@pytest.mark.parametrize(
    ("table", "change", "is_refused"),
    [(TARGET, rename, True), ("bronze.s", rename, True), (TARGET, add_again, False)],
)
def test_a_renamed_column_needs_a_commit_before_a_plan(
    tmp_path_factory: pytest.TempPathFactory,
    table: str,
    change: Callable[[UpdateSchema], None],
    is_refused: bool,
) -> None:
    lab = Lab(tmp_path_factory.mktemp("renamed"))
    lab.make()
    catalog = lab.catalog()
    with catalog.load_table(table).update_schema() as update:
        change(update)
    catalog.engine.dispose()
    before = lab.oracle.state()
    said = lab.do("plan", lab.manifest("a.yaml", "2024-01-02", "2024-01-04"), "--dry-run", *BY)
    assert lab.oracle.state() == before
    if not is_refused:
        assert said.code == 0
        return
    assert (said.code, said.error["code"]) == (2, "unsupported")
    assert f"{table}: v is amount now, and its newest snapshot" in said.error["problem"]
