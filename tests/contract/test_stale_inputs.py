"""`stale` on inputs of other layouts, with delete files, tags and branches that are set back."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import MonthTransform

from lakehouse_backfill.core.evidence.staleness import ProductStatus
from lakehouse_backfill.domain.partitions import ScopeField
from tests.contract.test_stale import BY_DAY, DAYS, History
from tests.contract.test_stale import catalog as lake_catalog
from tests.support.lakes.deletes import hide_rows

catalog = lake_catalog

BY_MONTH = PartitionSpec(PartitionField(1, 1000, MonthTransform(), "month"))
MONTH = ScopeField(column="day", transform="month", type="date")
#: Days of two months, so that one of them may change alone.
TWO_MONTHS = (
    "2020-01-28", "2020-01-29", "2020-01-30", "2020-01-31",
    "2020-02-01", "2020-02-02", "2020-02-03", "2020-02-04",
)  # fmt: skip


class OddHistory(History):
    """Adds merge-on-read deletes, tags that move, and a main branch that is set back."""

    acts: tuple[tuple[str, int], ...] = (
        ("late_rows", 4), ("restate", 2), ("delete", 1), ("hide", 3), ("compact", 2),
        ("new_reference", 1), ("publish", 5), ("rollback", 1), ("set_back", 2),
    )  # fmt: skip

    def __init__(self, catalog: Catalog, seed: int, *layout: Any, **source: Any) -> None:
        super().__init__(catalog, seed, *layout, **source)
        self.states: dict[int, tuple[dict[str, list[int]], dict[str, int]]] = {}
        self.keep_state()

    def table_of_inputs(self) -> Any:
        return self.catalog.load_table(self.raw)

    def keep_state(self) -> None:
        """Remember what the days hold at the newest snapshot."""
        head = self.table_of_inputs().current_snapshot()
        ids = {day: list(some) for day, some in self.ids.items()}
        self.states[head.snapshot_id] = ids, dict(self.rows)

    def hide(self) -> None:
        """Delete a row merge-on-read; a day keeps one, as metadata does not tell an empty one."""
        days = [day for day in self.days if len(self.ids[day]) > 1]
        if days:
            day = self.chance.choice(days)
            hide_rows(self.table_of_inputs(), "id", {self.ids[day].pop()})
            self.rows[day] = self.number()

    def set_back(self) -> None:
        """Set main back to one of its snapshots."""
        log = [entry.snapshot_id for entry in self.table_of_inputs().metadata.snapshot_log]
        to = self.chance.choice([one for one in log if one in self.states])
        self.table_of_inputs().manage_snapshots().set_current_snapshot(snapshot_id=to).commit()
        ids, rows = self.states[to]
        self.ids, self.rows = {day: list(some) for day, some in ids.items()}, dict(rows)

    def step(self) -> None:
        names, weights = zip(*self.acts, strict=True)
        getattr(self, self.chance.choices(names, weights)[0])()
        self.keep_state()


def found_states(status: ProductStatus) -> dict[str, str]:
    """The states by partition."""
    return {one.partition: one.state for one in status.partitions}


@pytest.mark.req("P5")
@pytest.mark.parametrize("seed", range(200, 208))
def test_delete_files_and_a_branch_that_is_set_back_make_exactly_their_partitions_stale(
    catalog, seed
):
    history = OddHistory(catalog, seed)
    history.publish()
    for number in range(8):
        history.step()
        status = history.status()
        assert found_states(status) == history.truth(), (seed, number, status)


WIDE = {"range": {"column": "day", "from": "2019-12-01", "to": "2020-04-01"}}


@pytest.mark.req("P5")
@pytest.mark.parametrize("spec", [BY_MONTH, UNPARTITIONED_PARTITION_SPEC], ids=["months", "none"])
@pytest.mark.parametrize("seed", range(300, 304))
def test_statistics_tell_which_days_were_appended_to_a_coarser_input(catalog, seed, spec):
    """Appends, runs and rollbacks alone: what is stale and missing is exact, by day."""
    history = OddHistory(catalog, seed + 50 * spec.is_unpartitioned(), TWO_MONTHS, spec, **WIDE)
    history.acts = (("late_rows", 4), ("new_reference", 1), ("publish", 4), ("rollback", 1))
    history.publish()
    for number in range(6):
        history.step()
        status = history.status()
        assert_sound(history, status)
        found, truth = found_states(status), history.truth()
        surely = {day: truth[day] for day in found}
        assert found == surely, (seed, number)


@pytest.mark.req("P5")
@pytest.mark.parametrize("spec", [BY_MONTH, UNPARTITIONED_PARTITION_SPEC], ids=["months", "none"])
@pytest.mark.parametrize("seed", range(400, 404))
def test_whatever_is_done_to_a_coarser_input_nothing_stale_is_said_to_be_complete(
    catalog, seed, spec
):
    history = OddHistory(catalog, seed + 50 * spec.is_unpartitioned(), TWO_MONTHS, spec, **WIDE)
    history.acts = tuple(one for one in history.acts if one[0] != "compact")
    history.publish()
    for _ in range(6):
        history.step()
        assert_sound(history, history.status())


def assert_sound(history: OddHistory, status: ProductStatus) -> None:
    """What is complete is so, what is missing is so, and what may be missing is named."""
    found, truth = found_states(status), history.truth()
    wrong = {day for day, state in found.items() if state == "complete" != truth[day]}
    assert not wrong
    missing = {day for day, state in truth.items() if state == "missing"}
    assert {day for day, state in found.items() if state == "missing"} <= missing
    unsaid = missing - found.keys()
    assert not unsaid or any(note.startswith("may be missing: ") for note in status.notes)


@pytest.mark.req("P5")
@pytest.mark.parametrize("seed", range(500, 506))
def test_an_input_at_a_tag_is_judged_by_the_tag(catalog, seed):
    history = TaggedHistory(catalog, seed)
    history.publish()
    for number in range(8):
        history.step()
        status = history.status()
        assert found_states(status) == history.truth(), (seed, number)


class TaggedHistory(OddHistory):
    """The run manifest reads the input at a tag, which people move."""

    acts = (
        ("late_rows", 4), ("restate", 2), ("hide", 2), ("compact", 1), ("publish", 4),
        ("rollback", 1), ("move_tag", 4),
    )  # fmt: skip

    def __init__(self, catalog: Catalog, seed: int) -> None:
        super().__init__(catalog, seed, at="golden")
        self.tagged = self.table_of_inputs().current_snapshot().snapshot_id
        self.table_of_inputs().manage_snapshots().create_tag(self.tagged, "golden").commit()

    def move_tag(self) -> None:
        """Move the tag to any snapshot."""
        self.tagged = self.chance.choice(list(self.states))
        manage = self.table_of_inputs().manage_snapshots()
        manage.remove_tag("golden").create_tag(self.tagged, "golden").commit()

    def at_tag(self, of: Any) -> Any:
        """Answer by what the input holds at the tag."""
        now = self.ids, self.rows
        self.ids, self.rows = self.states[self.tagged]
        try:
            return of()
        finally:
            self.ids, self.rows = now

    def reads(self, day: str) -> tuple[object, ...]:
        return self.at_tag(lambda: super(TaggedHistory, self).reads(day))

    def truth(self) -> dict[str, str]:
        return self.at_tag(super().truth)


def test_an_instant_of_the_past_makes_nothing_stale_and_the_page_says_so(catalog):
    history = OddHistory(catalog, 600)
    head = history.table_of_inputs().current_snapshot()
    history.source = {"at": head.snapshot_id}
    history.publish()
    history.late_rows()
    history.restate()
    status = history.status()
    assert set(found_states(status).values()) <= {"complete", "missing"}
    assert f"raw is read at {head.snapshot_id}, as the run manifest says" in status.notes[0]
    history.catalog.load_table(history.raw).maintenance.expire_snapshots().by_id(
        head.snapshot_id
    ).commit()
    status = history.status()
    assert {one.state for one in status.partitions if one.run_id} == {"unknown"}


def test_days_inside_a_file_of_a_month_may_be_missing_and_those_outside_are_not(catalog):
    """One file of five days: its first and last have rows, and those between may have."""
    history = OddHistory(catalog, 601, TWO_MONTHS, BY_MONTH, **WIDE)
    raw = history.table_of_inputs()
    raw.delete()
    history.publish_days(TWO_MONTHS[:1])
    held = [history.table(day, 1) for day in (TWO_MONTHS[1], TWO_MONTHS[3])]
    raw.append(pa.concat_tables(held))
    raw.append(history.table("2020-02-10", 2))
    status = history.status()
    missing = {day for day, state in found_states(status).items() if state == "missing"}
    assert missing == {TWO_MONTHS[1], TWO_MONTHS[3], "2020-02-10"}
    (note,) = status.notes
    assert note.startswith("may be missing: 2020-01-30; metadata does not tell whether raw has")


def test_a_day_whose_rows_delete_files_may_hide_may_be_missing(catalog):
    history = OddHistory(catalog, 602)
    history.publish_days(DAYS[:1])
    hide_rows(history.table_of_inputs(), "day", {date.fromisoformat(DAYS[2])})
    status = history.status()
    assert DAYS[2] not in found_states(status)
    assert found_states(status)[DAYS[3]] == "missing"
    assert status.notes[0].startswith(f"may be missing: {DAYS[2]}; metadata does not tell")


def test_rows_of_the_product_that_delete_files_may_hide_are_not_complete(catalog):
    history = OddHistory(catalog, 603)
    product = "silver.hidden"
    catalog.create_table(product, history.table_of_inputs().schema(), partition_spec=BY_DAY)
    table = catalog.load_table(product)
    table.append(pa.concat_tables([history.table(day, 1, 2) for day in DAYS[:3]]))
    history.product_table = product
    history.publish_days(DAYS[:3])
    hide_rows(catalog.load_table(product), "id", {1})
    assert set(found_states(history.status()).values()) == {"complete", "missing"}
    hide_rows(catalog.load_table(product), "day", {date.fromisoformat(DAYS[1])})
    status = history.status()
    assert found_states(status)[DAYS[1]] == "unknown"
    assert found_states(status)[DAYS[0]] == "complete"
    catalog.load_table(product).delete(EqualTo("day", date.fromisoformat(DAYS[0])))
    assert found_states(history.status())[DAYS[0]] == "missing"


def test_a_branch_that_is_gone_leaves_open_what_is_missing(catalog):
    history = OddHistory(catalog, 604)
    head = history.table_of_inputs().current_snapshot().snapshot_id
    history.table_of_inputs().manage_snapshots().create_branch(head, "live").commit()
    history.source = {"at": "live"}
    history.publish_days(DAYS[:2])
    assert found_states(history.status())[DAYS[2]] == "missing"
    history.table_of_inputs().manage_snapshots().remove_branch("live").commit()
    status = history.status()
    assert found_states(status) == dict.fromkeys(DAYS[:2], "unknown")
    assert "has no tag or branch 'live'" in status.notes[0]


def test_a_column_that_is_renamed_leaves_open_which_rows_changed(catalog):
    history = OddHistory(catalog, 605)
    history.publish_days(DAYS[:2])
    with history.table_of_inputs().update_schema() as update:
        update.rename_column("day", "dag")
    rows = history.table(DAYS[0], 5).rename_columns(["dag", "id", "amount"])
    history.table_of_inputs().append(rows)
    status = history.status()
    assert found_states(status) == dict.fromkeys(DAYS[:2], "stale")
    changed, missing = status.notes
    assert f"{history.raw} has no column day now: which rows of it changed is not known" in changed
    assert missing.startswith("whether partitions are missing is not known")


def test_files_without_statistics_leave_open_what_changed_and_what_is_missing(catalog):
    history = OddHistory(catalog, 606, DAYS, UNPARTITIONED_PARTITION_SPEC)
    history.publish_days(DAYS[:2])
    with history.table_of_inputs().transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    history.late_rows()
    status = history.status()
    assert {found_states(status)[day] for day in DAYS[:2]} == {"stale"}
    assert any("its files have no statistics of it" in note for note in status.notes)
