"""The heat map of partitions and columns."""

from __future__ import annotations

import re

import pytest

from lakehouse_backfill.domain.checks import CellDiff, Diff, PartitionDiff
from lakehouse_backfill.report import charts
from tests.support.examples.dossiers import diff

LABELS = ("p1", "p2", "p3")


def partition(label: str, added: int = 0, removed: int = 0, changed: int = 0) -> PartitionDiff:
    return PartitionDiff(
        partition=label, old_rows=9, new_rows=9, added=added, removed=removed, changed=changed,
        unchanged=0,
    )  # fmt: skip


def made(*partitions: PartitionDiff, cells: tuple[tuple[str, str, int], ...] = ()) -> Diff:
    found = tuple(
        CellDiff(partition=label, column=column, changed=count) for label, column, count in cells
    )
    return diff().model_copy(update={"partitions": partitions, "cells": found, "columns": ()})


def cells(page: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", page)


@pytest.mark.req("O4")
def test_every_changed_cell_is_drawn_with_its_partition_and_count() -> None:
    both = made(
        partition("p1", changed=5), partition("p3", changed=2),
        cells=(("p1", "a", 5), ("p3", "a", 1), ("p3", "b", 2)),
    )  # fmt: skip
    assert cells(charts.draw_heat_map(both, LABELS)) == [
        "p1: 5",
        "p3: 2",
        "p1: 5",
        "p3: 1",
        "p3: 2",
    ]


@pytest.mark.req("O4")
def test_a_partition_of_which_rows_only_came_or_went_has_cells_too() -> None:
    page = charts.draw_heat_map(made(partition("p1", added=4), partition("p2", removed=3)), LABELS)
    assert cells(page) == ["p1: 4", "p2: 3"]
    assert "rows added: 4 in all" in page
    assert "rows removed: 3 in all" in page


def test_columns_stand_in_the_order_of_their_changes() -> None:
    found = charts.lines_by_column(
        made(partition("p1"), cells=(("p1", "few", 1), ("p1", "most", 9), ("p2", "some", 3)))
    )
    assert [(line.name, line.total) for line in found] == [("most", 9), ("some", 3), ("few", 1)]


@pytest.mark.req("O4")
def test_columns_beyond_the_limit_are_summed_up_in_one_line() -> None:
    many = tuple(("p1", f"c{number:03d}", 200 - number) for number in range(100))
    found = charts.lines_by_column(made(partition("p1"), cells=many))
    assert len(found) == charts.MAX_HEAT_COLUMNS
    assert found[-1].name == "77 other columns, values changed"
    assert sum(line.total for line in found) == sum(count for _, _, count in many)


@pytest.mark.req("O4")
def test_neighbours_share_a_cell_and_no_row_is_lost() -> None:
    labels = [f"{number:04d}" for number in range(3_000)]
    rows = [partition(label, added=1) for label in labels]
    page = charts.draw_heat_map(made(*rows), labels)
    counts = [int(text.rsplit(": ", 1)[1]) for text in cells(page)]
    assert len(counts) <= charts.MAX_CELLS
    assert sum(counts) == 3_000
    assert "3,000 partitions share 120 cells" in page


def test_a_run_that_changes_nothing_has_no_map() -> None:
    assert (
        charts.draw_heat_map(made(partition("p1")), LABELS)
        == "<p>No row differs, so there is no map.</p>"
    )


def test_columns_that_stay_equal_are_named() -> None:
    assert "No row with equal key differs in: diverted." in charts.draw_heat_map(
        diff(), [str(row.partition) for row in diff().partitions]
    )


@pytest.mark.parametrize("highest", [1, 2, 7, 80, 10_000, 10**12])
def test_the_legend_says_the_counts_of_each_step(highest: int) -> None:
    page = charts._heat_legend(highest).replace(",", "")
    spans = re.findall(r'class="h(\d)"/></svg>(\d+)(?: to (\d+))?<', page)
    assert int(spans[-1][2] or spans[-1][1]) == highest
    for step, low, high in spans:
        assert charts.ramp_step(int(low), highest) == int(step)
        assert charts.ramp_step(int(high or low), highest) == int(step)
    ends = [(int(low), int(high or low)) for _, low, high in spans]
    assert [low for low, _ in ends] == [1, *(high + 1 for _, high in ends[:-1])]
