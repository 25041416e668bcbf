"""A table of versions (U5): files of all kept versions with their labels, by one commit each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo

from lakehouse_backfill.adapters.iceberg.commit.version_tables import IcebergVersionTables
from lakehouse_backfill.domain.publication import (
    MODE_PROPERTY,
    LabelledVersion,
    VersionLabels,
    VersionStatus,
)
from lakehouse_backfill.errors import Conflict, Unsupported
from tests.support.fakes.rollout import FakeVersionTables
from tests.support.lakes.tables import DAY, DAYS, SCHEMA, TARGET, Kit, row

pytestmark = pytest.mark.req("U5")
TABLE = f"{TARGET}_versions"
Row = tuple[Any, ...]


class _Versions:
    """A table, versions of it that restate a day each, and the table that lists all of them."""

    def __init__(self, kit: Kit, version: int = 2) -> None:
        self.kit = kit
        self.port = IcebergVersionTables(kit.catalog)
        kit.create_days(DAYS, version=version)
        head = kit.head()
        assert head is not None
        self.states = {0: (TARGET, head)}
        self.acts = 0

    def restate(self, number: int, day: str, *, on: int) -> None:
        """Make version `number` from version `on`: one day has other rows."""
        table, _ = self.states[on]
        request = self.kit.stage(
            DAY, {day: [row(10 * number, day, f"v{number}")]}, run=f"r{number}", name=table
        )
        assert request.shadow_snapshot_id is not None
        self.states[number] = (request.shadow, request.shadow_snapshot_id)

    def labels(self, *said: str, let_go: tuple[int, ...] = ()) -> VersionLabels:
        self.acts += 1
        versions = []
        for one in said:
            number, status = one.split()
            table, snapshot_id = self.states[int(number)]
            wanted: VersionStatus = status  # type: ignore[assignment]
            versions.append(
                LabelledVersion(
                    version=int(number), status=wanted, table=table, snapshot_id=snapshot_id
                )
            )
        return VersionLabels(
            product=TARGET, table=TABLE, acts=self.acts, versions=tuple(versions), let_go=let_go,
            mode="replay",
        )  # fmt: skip

    def show(self, *said: str, let_go: tuple[int, ...] = ()) -> VersionLabels:
        labels = self.labels(*said, let_go=let_go)
        self.port.open(TABLE, TARGET, labels.accepted.table)
        self.port.show(labels)
        assert self.port.fault(labels) == ""
        return labels

    def rows(self, **where: Any) -> list[Row]:
        """Give day, value, version and status of the rows; `where` is pushed into the scan."""
        scan = self.kit.live.load_table(TABLE).scan()
        for column, value in where.items():
            scan = scan.filter(EqualTo(column, value))  # type: ignore[arg-type]
        found = scan.to_arrow().to_pylist()
        return sorted((str(r["d"]), r["v"], r["output_version"], r["output_status"]) for r in found)

    def accepted(self) -> list[Row]:
        return [found[:2] for found in self.rows(output_status="accepted")]

    def held(self, number: int) -> list[Row]:
        table, snapshot_id = self.states[number]
        return sorted((found[1], found[3]) for found in self.kit.rows(table, snapshot_id))


@pytest.mark.req("V2")
@pytest.mark.parametrize("version", [1, 2])
def test_the_accepted_rows_are_always_those_of_the_accepted_version(
    tmp_path: Path, version: int
) -> None:
    made = _Versions(Kit(tmp_path), version)
    made.restate(1, DAYS[1], on=0)
    made.restate(2, DAYS[2], on=1)
    made.show("0 superseded", "1 accepted")
    assert made.rows() == [
        (DAYS[0], "old", 0, "accepted"), (DAYS[1], "old", 0, "superseded"),
        (DAYS[1], "v1", 1, "accepted"), (DAYS[2], "old", 0, "accepted"),
    ]  # fmt: skip
    made.show("0 superseded", "1 superseded", "2 accepted")
    assert made.accepted() == made.held(2)
    made.show("0 superseded", "1 accepted", "2 rolled_back")
    assert made.accepted() == made.held(1)
    assert made.rows(output_version=2) == [(DAYS[2], "v2", 2, "rolled_back")]
    # Published again from the same shadow: its rows are of the version that is accepted now.
    made.states[3] = made.states[2]
    made.show("0 superseded", "1 superseded", "3 accepted", "2 rolled_back")
    assert made.accepted() == made.held(3)
    assert made.rows(output_version=3) == [(DAYS[2], "v2", 3, "accepted")]
    assert len(made.rows()) == 5
    snapshots = made.kit.live.load_table(TABLE).snapshots()
    assert {one.summary and one.summary[MODE_PROPERTY] for one in snapshots} == {"replay"}


def test_nothing_outside_of_what_changes_between_two_versions_is_touched(kit: Kit) -> None:
    """Each commit lists as removed and added only files of the version that comes or goes."""
    made = _Versions(kit)
    made.restate(1, DAYS[1], on=0)
    made.show("0 accepted")
    before = made.rows()
    made.show("0 superseded", "1 accepted")
    summary = kit.live.load_table(TABLE).current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    # The day's old file changes its status, and its new one comes; the two other days stay.
    assert (summary["added-data-files"], summary["deleted-data-files"]) == ("2", "1")
    assert summary["total-data-files"] == "4"
    untouched = [found for found in made.rows() if found[0] != DAYS[1]]
    assert untouched == [found for found in before if found[0] != DAYS[1]]
    # Neither the version's own table nor the product's has another row or snapshot for it.
    assert [kit.head(TARGET), len(kit.rows(TARGET))] == [made.states[0][1], 3]


def test_readers_see_each_commit_whole_and_later_acts_are_never_taken_back(kit: Kit) -> None:
    made = _Versions(kit)
    made.restate(1, DAYS[0], on=0)
    made.show("0 accepted")
    late = made.labels("0 superseded", "1 accepted")
    made.show("0 accepted", "1 rolled_back")
    history = len(kit.live.load_table(TABLE).metadata.snapshots)
    made.port.show(late)  # by a process that was asleep
    assert made.accepted() == made.held(0)
    assert len(kit.live.load_table(TABLE).metadata.snapshots) == history
    for snapshot in kit.live.load_table(TABLE).metadata.snapshots:
        found = kit.live.load_table(TABLE).scan(
            EqualTo("output_status", "accepted"), snapshot_id=snapshot.snapshot_id
        ).to_arrow()  # fmt: skip
        assert sorted(map(str, found["d"].to_pylist())) == list(DAYS)


@pytest.mark.parametrize("kind", ["fake", "PyIceberg"])
def test_a_table_says_what_the_latest_act_says(kit: Kit, kind: str) -> None:
    made = _Versions(kit)
    port = FakeVersionTables() if kind == "fake" else made.port
    made.restate(1, DAYS[0], on=0)
    earlier, later = made.labels("0 accepted"), made.labels("0 superseded", "1 accepted")
    assert port.fault(earlier)
    port.open(TABLE, TARGET, TARGET)
    for labels in (earlier, later):
        assert port.fault(labels)
        for _ in range(2):
            port.show(labels)
            assert port.fault(labels) == ""
    port.open(TABLE, TARGET, TARGET)
    port.show(earlier)
    assert port.fault(earlier)
    assert port.fault(later) == ""


def test_rows_of_a_version_that_was_let_go_leave_and_those_that_stay_keep_their_number(
    kit: Kit,
) -> None:
    made = _Versions(kit)
    made.restate(1, DAYS[1], on=0)
    made.restate(2, DAYS[2], on=1)
    made.show("0 superseded", "1 superseded", "2 accepted")
    made.show("2 accepted", let_go=(0, 1))
    assert made.rows() == [
        (DAYS[0], "old", 0, "accepted"), (DAYS[1], "v1", 1, "accepted"),
        (DAYS[2], "v2", 2, "accepted"),
    ]  # fmt: skip


def test_what_others_write_into_it_is_a_conflict_that_verify_names(kit: Kit) -> None:
    made = _Versions(kit)
    made.restate(1, DAYS[1], on=0)
    labels = made.show("0 superseded", "1 accepted")
    theirs = {"output_version": 9, "output_status": "accepted"}
    kit.append({**row(99, DAYS[0], "theirs"), **theirs}, name=TABLE)
    with pytest.raises(Conflict, match="was written by somebody else"):
        made.port.show(made.labels("0 accepted", "1 rolled_back"))
    assert "was written by somebody else" in made.port.fault(labels)
    assert ("2013-02-01", "theirs", 9, "accepted") in made.rows()


def test_labels_that_are_behind_the_pointer_are_named_by_file(kit: Kit) -> None:
    made = _Versions(kit)
    made.restate(1, DAYS[1], on=0)
    made.show("0 accepted")
    fault = made.port.fault(made.labels("0 superseded", "1 accepted"))
    assert fault.startswith(f"2 files of {TABLE} are not labelled as the pointer says, e.g. ")


def test_another_table_of_that_name_and_versions_that_do_not_fit_are_refused(kit: Kit) -> None:
    made = _Versions(kit)
    kit.create(("d", "identity"), name="silver.other")
    with pytest.raises(Conflict, match=r"silver\.other is no table of versions"):
        made.port.open("silver.other", TARGET, TARGET)
    made.show("0 accepted")
    with pytest.raises(Conflict, match=rf"holds versions of {TARGET}, so those of silver\.u"):
        made.port.open(TABLE, "silver.u", TARGET)
    kit.evolve(lambda update: update.add_column("Output_Status", SCHEMA.find_type("v")))
    with pytest.raises(Unsupported, match="has a column Output_Status of its own"):
        made.port.require_fit(*made.states[0])


def test_a_column_that_was_added_since_is_shown_and_older_versions_have_no_value(kit: Kit) -> None:
    made = _Versions(kit)
    made.show("0 accepted")
    kit.evolve(lambda update: update.add_column("more", SCHEMA.find_type("v")))
    made.restate(1, DAYS[1], on=0)
    made.show("0 superseded", "1 accepted")
    names = [field.name for field in kit.live.load_table(TABLE).schema().fields]
    assert names[-3:] == ["more", "output_version", "output_status"]
    made.show("0 accepted", "1 rolled_back")
    assert made.accepted() == made.held(0)


def test_a_version_with_another_partitioning_is_refused_before_it_is_accepted(kit: Kit) -> None:
    made = _Versions(kit)
    made.show("0 accepted")
    kit.respec(lambda update: update.add_field("region", "identity"))
    with pytest.raises(Unsupported, match="has another partitioning"):
        made.port.open(TABLE, TARGET, TARGET)
    assert made.accepted() == made.held(0)


def test_a_catalog_that_keeps_another_table_than_was_registered_is_refused_without_a_trace(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _Versions(kit)

    def register(name: str, _: str) -> None:
        kit.catalog.create_table(name, SCHEMA)

    monkeypatch.setattr(kit.catalog, "register_table", register)
    with pytest.raises(Unsupported, match="the catalog does not register"):
        made.port.open(TABLE, TARGET, TARGET)
    assert not kit.live.table_exists(TABLE)


def test_a_table_that_another_process_labels_while_it_is_made_is_not_dropped(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, register = _Versions(kit), kit.catalog.register_table

    def register_and_label(name: str, file: str) -> None:
        register(name, file)
        made.port.show(made.labels("0 accepted"))

    monkeypatch.setattr(kit.catalog, "register_table", register_and_label)
    made.port.open(TABLE, TARGET, TARGET)
    assert made.accepted() == made.held(0)
