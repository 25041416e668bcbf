"""Tables whose partitioning changed: files of old specs in the scope are replaced and put back.

Each state is also read with a filter: a file under the wrong spec is missed by filtered reads only.
"""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.files import SpecPartitions
from lakehouse_backfill.errors import Unsupported
from tests.support.lakes.deletes import hide
from tests.support.lakes.tables import TARGET, Kit, field_of, row

DAY, MONTH = field_of("ts", "day"), field_of("ts", "month")
FEBRUARY = tuple(f"2013-02-{day:02}" for day in range(1, 29))


def respec(kit: Kit, removed: str | None, column: str, transform: str) -> None:
    with kit.live.load_table(TARGET).update_spec() as update:
        if removed:
            update.remove_field(removed)
        update.add_field(column, transform)


def filtered(kit: Kit, start: str, stop: str) -> list[int]:
    where = f"ts >= '{start}T00:00:00+00:00' and ts < '{stop}T00:00:00+00:00'"
    return sorted(kit.live.load_table(TARGET).scan(where).to_arrow().column("id").to_pylist())


def ids(kit: Kit) -> list[int]:
    return sorted(found[0] for found in kit.rows())


@pytest.fixture
def day_to_month(kit: Kit) -> Kit:
    """January and February by day, then February and March by month."""
    kit.create(("ts", "day"))
    kit.append(row(0, "2013-01-31"), row(1, "2013-02-01"), row(2, "2013-02-28"))
    respec(kit, "p0_ts", "ts", "month")
    kit.append(row(3, "2013-02-15"), row(4, "2013-03-01"))
    return kit


@pytest.fixture
def month_to_day(kit: Kit) -> Kit:
    """January and February by month, then February and March by day."""
    kit.create(("ts", "month"))
    kit.append(row(0, "2013-01-31"), row(1, "2013-02-01"), row(2, "2013-02-28"))
    respec(kit, "p0_ts", "ts", "day")
    kit.append(row(3, "2013-02-15"), row(4, "2013-03-01"))
    return kit


@pytest.mark.req("U1", "U12")
def test_day_files_of_the_month_are_replaced_and_come_back(day_to_month):
    kit = day_to_month
    request = kit.stage(MONTH, {"2013-02": [row(11, "2013-02-10", "new")]})

    swap = kit.publisher.adopt(request)
    assert ids(kit) == [0, 4, 11]
    assert filtered(kit, "2013-02-01", "2013-03-01") == [11]

    kit.publisher.revert(kit.revert_request(swap, request.scope))
    assert ids(kit) == [0, 1, 2, 3, 4]
    assert filtered(kit, "2013-02-01", "2013-02-02") == [1]
    assert filtered(kit, "2013-02-15", "2013-03-01") == [2, 3]


@pytest.mark.req("U1", "U12")
def test_a_month_file_is_replaced_with_all_its_days_and_comes_back(month_to_day):
    kit = month_to_day
    rows = {day: [row(11, day, "new")] if day == FEBRUARY[9] else [] for day in FEBRUARY}
    wide = Scope(field=DAY, partitions=FEBRUARY)
    request = kit.stage(DAY, {FEBRUARY[9]: rows[FEBRUARY[9]]}).model_copy(
        update={"scope": wide, "chunk_ids": ("all",)}
    )
    shadow = kit.live.load_table(request.shadow)
    where = "ts >= '2013-02-01T00:00:00+00:00' and ts < '2013-03-01T00:00:00+00:00'"
    shadow.overwrite(
        kit.arrow(request.shadow, rows[FEBRUARY[9]]), where,
        snapshot_properties={"lakehouse-backfill.chunk-id": "all"},
    )  # fmt: skip
    request = request.model_copy(update={"shadow_snapshot_id": kit.head(request.shadow)})

    swap = kit.publisher.adopt(request)
    assert ids(kit) == [0, 4, 11]
    assert filtered(kit, "2013-02-10", "2013-02-11") == [11]

    kit.publisher.revert(kit.revert_request(swap, wide))
    assert ids(kit) == [0, 1, 2, 3, 4]
    assert filtered(kit, "2013-02-28", "2013-03-01") == [2]


@pytest.mark.req("U1")
def test_a_month_file_under_some_of_its_days_is_refused_with_the_fix(month_to_day):
    kit = month_to_day
    some = Scope(field=DAY, partitions=FEBRUARY[:2])

    with pytest.raises(
        Unsupported, match=r"partition 2013-02, which holds rows of the scope and of 26 partitions"
    ) as refused:
        kit.tables.scoped(TARGET, kit.head(), some)

    assert "add these partitions to the scope" in refused.value.fix
    far = Scope(field=DAY, partitions=("2013-03-01",))
    assert kit.tables.scoped(TARGET, kit.head(), far).places == (
        SpecPartitions(spec_id=1, spec="day as ts_day", partitions=("ts_day=2013-03-01",)),
    )


@pytest.mark.req("U1")
def test_days_beside_month_files_are_restated_alone(month_to_day):
    kit = month_to_day

    kit.publisher.adopt(kit.stage(DAY, {"2013-03-01": [row(11, "2013-03-01", "new")]}))

    assert ids(kit) == [0, 1, 2, 3, 11]
    assert filtered(kit, "2013-03-01", "2013-03-02") == [11]


@pytest.mark.req("U1", "U12")
def test_old_spec_files_go_when_an_identity_was_added(kit):
    kit.create(("ts", "day"))
    kit.append(row(0, FEBRUARY[0]), row(1, FEBRUARY[1]))
    respec(kit, None, "region", "identity")
    kit.append(row(2, FEBRUARY[1], region="US"), row(3, FEBRUARY[1], region=None))
    wide = Scope(field=DAY, partitions=(FEBRUARY[1],))
    assert [place.partitions for place in kit.tables.scoped(TARGET, kit.head(), wide).places] == [
        (f"p0_ts={FEBRUARY[1]}",),
        (f"p0_ts={FEBRUARY[1]}/region=US", f"p0_ts={FEBRUARY[1]}/region=null"),
    ]

    swap = kit.publisher.adopt(kit.stage(DAY, {FEBRUARY[1]: [row(11, FEBRUARY[1], "new")]}))
    assert ids(kit) == [0, 11]
    assert filtered(kit, FEBRUARY[1], FEBRUARY[2]) == [11]

    kit.publisher.revert(kit.revert_request(swap, wide))
    assert filtered(kit, FEBRUARY[1], FEBRUARY[2]) == [1, 2, 3]
    assert kit.live.load_table(TARGET).scan("region = 'EU'").to_arrow().num_rows == 2


@pytest.mark.req("U1", "U12")
def test_delete_files_of_an_old_spec_go_with_its_files(day_to_month):
    kit = day_to_month
    hide(kit, 1, 3)

    kit.publisher.adopt(kit.stage(MONTH, {"2013-02": [row(11, "2013-02-10", "new")]}))

    assert ids(kit) == [0, 4, 11]
    assert kit.live.load_table(TARGET).inspect.delete_files().num_rows == 0


@pytest.mark.req("U1", "U12")
@pytest.mark.parametrize(
    ("partitioning", "field", "blank"),
    [
        (("d", "identity"), field_of("d"), None),
        (("ts", "day"), DAY, None),
        (("region", "identity"), field_of("region"), "region"),
    ],
    ids=["date", "day of instant", "text"],
)
def test_the_null_partition_can_be_named(kit, partitioning, field, blank):
    kit.create(partitioning)

    def nothing(key: int, v: str = "old") -> dict[str, object]:
        return row(key, FEBRUARY[0] if blank else None, v, region=None if blank else "EU")

    kit.append(row(0, FEBRUARY[0]), nothing(1))
    scope = Scope(field=field, partitions=("null",))

    swap = kit.publisher.adopt(kit.stage(field, {"null": [nothing(11, "new")]}))
    assert ids(kit) == [0, 11]
    assert kit.publisher.changes(TARGET, scope, swap.snapshot_id) is None

    kit.publisher.revert(kit.revert_request(swap, scope))
    assert ids(kit) == [0, 1]
    column = partitioning[0]
    assert kit.live.load_table(TARGET).scan(f"{column} is null").to_arrow().num_rows == 1
