"""maintain deletes what a run staged and nobody published, and nothing that a table reaches."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from lakehouse_backfill import fault_points
from lakehouse_backfill.domain.catch_up import CarriedChunk, CatchUp
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.run import Event, RunState
from lakehouse_backfill.errors import BackfillError
from tests.chaos.lab import DAYS, SOURCE, TARGET, _arrow
from tests.support.lakes.retention import SHADOWS, WHO, RetentionLake
from tests.support.oracles.reached import local, on_disk, reached


@pytest.fixture
def lake(tmp_path: Path) -> RetentionLake:
    return RetentionLake(tmp_path)


def warehouse(lake: RetentionLake) -> Path:
    return lake.lab.folder / "lake" / "warehouse"


def folder(lake: RetentionLake, run: str) -> set[str]:
    """What lies in the folder of the run's shadow."""
    return {path for path in on_disk(warehouse(lake)) if f"t__{run.replace('-', '_')}/" in path}


def cancelled(lake: RetentionLake, *days: str, name: str = "a") -> str:
    run = lake.staged(*days, name=name)
    lake.project.cancel(run, WHO, "not needed")
    return run


def added_files(lake: RetentionLake, run: str) -> list[DataFile]:
    """The data files that the run's shadow has beyond the target's."""
    (shadow,) = [name for name in lake.shadows() if run.replace("-", "_") in name]
    table = lake.catalog.load_table(shadow)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if "/t__" in entry.data_file.file_path and entry.status != ManifestEntryStatus.DELETED
    ]


def maintain(lake: RetentionLake, **options: Any) -> dict[str, Any]:
    """maintain, as its dry run said it; no file that any table reaches is gone after it."""
    seen = lake.maintain(dry_run=True, **options)
    before = on_disk(warehouse(lake))
    done = lake.maintain(**options)
    assert (done["deleted"], done["left"]) == (seen["deleted"], seen["left"])
    gone = {
        path for path in before - on_disk(warehouse(lake)) if "/lakehouse_backfill/" not in path
    }
    assert not gone & reached(lake.catalog)
    assert len(gone) == sum(one["files"] for one in done["deleted"])
    return done


def approved(lake: RetentionLake, manifest_end: str = "", last: str = DAYS[4]) -> str:
    """An approved run whose manifest ends with more settings."""
    file = lake.lab.manifest("a.yaml", DAYS[1], last)
    path = lake.lab.folder / file
    path.write_text(path.read_text() + manifest_end)
    run = str(lake.project.plan(file, by=WHO).run_id)
    lake.project.approve(run, WHO)
    return run


@pytest.mark.parametrize("end", ["cancelled", "rejected"])
def test_files_of_a_run_that_was_never_published_are_deleted_once_its_lease_is_over(
    lake: RetentionLake, end: str
) -> None:
    run = lake.staged()
    if end == "rejected":
        lake.project.reject(run, WHO, "no")
    lake.project.cancel(run, WHO, "not needed")
    before, shared = folder(lake, run), lake.files() - folder(lake, run)
    rows = lake.rows()
    assert maintain(lake)["deleted"] == []
    lake.later(31)
    sizes = sum(Path(path).stat().st_size for path in before)
    (deleted,) = maintain(lake)["deleted"]
    assert {**deleted, "files": len(before)} == deleted
    assert deleted == {
        "run_id": run, "product": TARGET, "shadow": f"{SHADOWS}.t__{run.replace('-', '_')}",
        "files": deleted["files"], "size_bytes": sizes, "kept_files": 0,
    }  # fmt: skip
    assert (folder(lake, run), lake.files(), lake.rows()) == (set(), shared, rows)
    verbs = [event.verb for event in lake.project.log(run).events]
    assert verbs[-3:] == ["retire", "begin deleting files", "delete files"]
    assert maintain(lake)["deleted"] == []
    assert lake.project.audit_verify().intact


def test_files_of_a_run_that_was_cancelled_half_staged_are_deleted(lake: RetentionLake) -> None:
    run = approved(lake)
    with lake.killed_at("Runs.record_chunk:before"):
        lake.project.stage(run, WHO)
    lake.project.cancel(run, WHO, "no")
    lake.later(31)
    assert folder(lake, run)
    maintain(lake)
    assert folder(lake, run) == set()


def test_an_erasure_deletes_them_at_once(lake: RetentionLake) -> None:
    run = cancelled(lake)
    assert maintain(lake)["deleted"] == []
    done = maintain(lake, product=TARGET, erasure="request 4711")
    assert [one["run_id"] for one in done["deleted"]] == [run]
    assert folder(lake, run) == set()


def test_files_of_a_run_that_was_published_and_rolled_back_are_never_deleted(
    lake: RetentionLake,
) -> None:
    run = lake.published()
    lake.project.rollback(TARGET, 0, reason="wrong", by=WHO)
    before = folder(lake, run)
    for _ in range(3):
        lake.later(200)
        done = maintain(lake)
        assert (done["deleted"], done["left"]) == ([], [])
    assert folder(lake, run) == before


def catching_up(lake: RetentionLake) -> str:
    """A run that is accepted, and a live commit into one of its days since."""
    run = approved(lake, "safety: {on_conflict: catch_up}\n")
    for act in (lake.project.stage, lake.project.validate, lake.project.accept):
        act(run, WHO)
    row = _arrow([(date.fromisoformat(DAYS[2]), 9, 9)])
    for table in (SOURCE, TARGET):
        lake.catalog.load_table(table).append(row)
    return run


def test_files_that_a_revision_took_over_and_published_stay_and_the_others_go(
    lake: RetentionLake,
) -> None:
    run = catching_up(lake)
    taken = {local(file.file_path) for file in added_files(lake, run)}
    before = folder(lake, run)
    lake.project.publish(run, WHO)
    states = {one.run_id: one.state for one in lake.project.status(None).runs}
    assert lake.project.status(run).runs[0].state == "superseded", states
    rows = lake.rows()
    lake.later(31)
    done = maintain(lake)
    assert lake.rows() == rows
    stay = taken & reached(lake.catalog)
    assert len(stay) == 2
    (deleted,) = done["deleted"]
    assert (deleted["run_id"], deleted["kept_files"]) == (run, 2)
    assert folder(lake, run) == stay < before


def test_a_revision_that_took_chunks_over_and_was_cancelled_deletes_its_own_files_only(
    lake: RetentionLake,
) -> None:
    run = catching_up(lake)
    with lake.killed_at("Publisher.carry:after"):
        lake.project.publish(run, WHO)
    (revision,) = {one.run_id for one in lake.project.status(None).runs} - {run}
    lake.project.cancel(revision, WHO, "no")
    taken = {local(file.file_path) for file in added_files(lake, revision)}
    assert taken & folder(lake, run)
    lake.later(31)
    done = maintain(lake)["deleted"]
    assert {one["run_id"] for one in done} == {run, revision}
    assert folder(lake, run) | folder(lake, revision) == set()


def test_while_an_open_run_takes_chunks_over_nothing_is_deleted(lake: RetentionLake) -> None:
    run = catching_up(lake)
    with lake.killed_at("Publisher.carry:before"):
        lake.project.publish(run, WHO)
    before = folder(lake, run)
    lake.later(31)
    done = maintain(lake)
    assert folder(lake, run) == before
    assert any("takes chunks over from it" in one["because"] for one in done["kept"])


def _register_follower(lake: RetentionLake, run: str) -> None:
    """Register a run, as another process may, whose plan takes chunks over from `run`."""
    context = lake.open().wiring.context
    plan = context.runs.plan(run)
    carried = tuple(
        CarriedChunk(
            chunk_id=one.chunk_id, run_id=run, shadow_table=plan.shadow_table,
            shadow_snapshot_id=one.snapshot_id, rows=one.added_rows, checksum="", inputs={},
        )
        for one in context.shadows.chunks(plan.shadow_table)
    )  # fmt: skip
    follow = CatchUp(of=run, attempt=1, drifts=(), drifted=(), accepted_digest="", carried=carried)
    resolved = plan.resolved.model_copy(update={"catch_up": follow})
    names = {"run_id": "follower", "shadow_table": f"{SHADOWS}.follower", "resolved": resolved}
    event = Event(
        run_id="follower", seq=1, at=lake.clock.now(), actor=WHO, verb="plan", mode="backfill",
        from_state=RunState.DRAFT, to_state=RunState.PLANNED,
    )  # fmt: skip
    fields = {**plan.model_dump(), **names, "manifest_hash": resolved.manifest_hash}
    context.runs.register(Plan.model_validate(fields), event)


def test_a_run_that_is_registered_right_before_the_shadow_is_dropped_keeps_the_files(
    lake: RetentionLake,
) -> None:
    """The decision did not know it, so open runs are read once more after the drop."""
    run = cancelled(lake)
    lake.later(31)
    before, (shadow,) = folder(lake, run), lake.shadows()

    def register(point: str) -> None:
        if point == "Shadows.drop:committing":
            fault_points.install_hook(None)
            _register_follower(lake, run)

    with lake.hooked(register):
        (left,) = lake.maintain()["left"]
    assert left["because"] == f"follower needs files of {shadow}"
    assert (folder(lake, run), lake.shadows()) == (before, [])
    assert [one["because"] for one in maintain(lake)["left"]] == [left["because"]]
    lake.project.cancel("follower", WHO, "no")
    assert [one["run_id"] for one in maintain(lake)["deleted"]] == [run]


def test_staged_files_below_the_target_go_and_the_targets_own_stay(lake: RetentionLake) -> None:
    shared = lake.files()
    run = approved(lake, "compute: {staging_location: under_target}\n", DAYS[3])
    lake.project.stage(run, WHO)
    mine = lake.files() - shared
    assert all(f"/data/{run}/" in name for name in mine)
    lake.project.cancel(run, WHO, "no")
    lake.later(31)
    maintain(lake)
    assert (lake.files(), folder(lake, run)) == (shared, set())


def _take(lake: RetentionLake, table: str, file: DataFile, branch: str = "main") -> int:
    """Let a table list a file of the shadow, by a hand that is not ours."""
    with lake.catalog.load_table(table).transaction() as change:  # noqa: SIM117
        with change.update_snapshot(branch=branch).fast_append() as append:
            append.append_data_file(file)
    found = lake.catalog.load_table(table).refs()[branch].snapshot_id
    return int(found)


def _set_main_back(lake: RetentionLake, snapshot_id: int) -> None:
    table = lake.catalog.load_table(TARGET)
    update = SetSnapshotRefUpdate(
        ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id
    )
    lake.catalog.commit_table(table, (), (update,))


@pytest.mark.parametrize("how", ["main", "branch", "tag", "unreferenced"])
def test_a_file_that_any_snapshot_of_the_target_reaches_stays(
    lake: RetentionLake, how: str
) -> None:
    run = cancelled(lake)
    file, *others = added_files(lake, run)
    assert others
    first = lake.catalog.load_table(TARGET).current_snapshot()
    assert first is not None
    if how == "branch":
        lake.catalog.load_table(TARGET).manage_snapshots().create_branch(
            first.snapshot_id, "side"
        ).commit()
    taken = _take(lake, TARGET, file, "side" if how == "branch" else "main")
    if how == "tag":
        lake.catalog.load_table(TARGET).manage_snapshots().create_tag(taken, "mine").commit()
    if how in ("tag", "unreferenced"):
        _set_main_back(lake, first.snapshot_id)
    lake.later(31)
    (deleted,) = maintain(lake)["deleted"]
    assert deleted["kept_files"] == 1
    assert folder(lake, run) == {local(file.file_path)}


def test_a_file_that_another_shadow_lists_keeps_all_until_that_one_is_dropped(
    lake: RetentionLake,
) -> None:
    run = cancelled(lake)
    lake.feed()
    other = lake.staged(DAYS[4], DAYS[6], name="b")
    (shadow,) = [name for name in lake.shadows() if other.replace("-", "_") in name]
    _take(lake, shadow, added_files(lake, run)[0])
    before = folder(lake, run)
    lake.later(31)
    (left,) = maintain(lake)["left"]
    assert left["because"].startswith(f"{shadow} lists 1 files of ")
    assert left["command"] is None
    assert folder(lake, run) == before
    lake.project.cancel(other, WHO, "no")
    lake.later(31)
    done = maintain(lake)
    assert {one["run_id"] for one in done["deleted"]} == {run, other}
    assert folder(lake, run) == set()


def _pin(lake: RetentionLake, run: str, shadow: str) -> str:
    """Another run, which is being planned, has a lease on a snapshot of the shadow."""
    lease = PinLease(
        table=shadow, tag="lhb-pin-other", snapshot_id=1, run_id="other", product=TARGET, owner=WHO,
        reason="a source", until=lake.clock.now() + timedelta(days=90), at=lake.clock.now(), by=WHO,
    )  # fmt: skip
    lake.project.wiring.context.evidence.grant_leases((lease,))
    return f"other needs files of {shadow}"


def _reserve(lake: RetentionLake, run: str, shadow: str) -> str:
    """The run has a reserved version, and no row says how its publication ended."""
    row = Publication(
        product=TARGET, version=1, token="t1", action="reserve", run_id=run, table=TARGET,
        snapshot_id=None, before_snapshot_id=None, scope=None, supersedes=None,
        at=lake.clock.now(), by=WHO,
    )  # fmt: skip
    lake.project.wiring.context.versions.move(TARGET, lambda _: (row,))
    return f"{run} began to publish {shadow}, and nothing says how it ended"


def _put_inside(lake: RetentionLake, run: str, shadow: str) -> str:
    """Another table has its folder in the folder of the shadow."""
    found = lake.catalog.load_table(shadow)
    name = f"{SHADOWS}.inside"
    lake.catalog.create_table(name, found.schema(), location=f"{found.location()}/inside")
    return f"{name} lies at "


@pytest.mark.parametrize("prevent", [_pin, _reserve, _put_inside])
def test_nothing_is_deleted_while_somebody_else_may_need_it(
    lake: RetentionLake, prevent: Callable[[RetentionLake, str, str], str]
) -> None:
    run = cancelled(lake)
    (shadow,) = lake.shadows()
    lake.later(31)
    because = prevent(lake, run, shadow)
    before = folder(lake, run)
    (left,) = maintain(lake)["left"]
    assert (left["run_id"], left["because"][: len(because)]) == (run, because)
    assert left["fix"]
    assert folder(lake, run) == before


def _damage(path: str, how: str) -> None:
    if how == "garbage":
        Path(path).write_bytes(b"\x00garbage" * 20)
    elif how == "cut":
        Path(path).write_bytes(Path(path).read_bytes()[:100])
    else:
        Path(path).unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    ("whose", "how"),
    [
        ("shadow", "garbage"), ("shadow", "gone"), ("target", "cut"), ("target", "gone"),
        ("target list", "garbage"), ("target list", "gone"), ("shadow metadata", "cut"),
        ("shadow metadata", "gone"),
    ],
)  # fmt: skip
def test_in_doubt_everything_is_kept_and_said(lake: RetentionLake, how: str, whose: str) -> None:
    run = cancelled(lake)
    table = lake.catalog.load_table(lake.shadows()[0] if whose.startswith("shadow") else TARGET)
    if whose.startswith("target"):
        table.append(_arrow([(date.fromisoformat(DAYS[1]), 9, 9)]))
    lake.later(31)
    if whose == "shadow metadata":
        # Between the event and the deletion: before it, the shadow is no table any more.
        with lake.killed_at("Shadows.retire:after"):
            lake.maintain()
        _damage(local(table.metadata_location), how)
    else:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifest = next(
            one
            for one in snapshot.manifests(table.io)
            if one.added_snapshot_id == snapshot.snapshot_id and one.has_added_files()
        )
        path = snapshot.manifest_list if whose.endswith("list") else manifest.manifest_path
        _damage(local(path), how)
    before = folder(lake, run)
    lake.project = lake.open()
    done = lake.maintain()
    assert folder(lake, run) == before
    (left,) = done["left"]
    assert (done["deleted"], left["run_id"]) == ([], run)
    assert "is damaged" in left["because"] or "is gone" in left["because"]
    assert left["fix"]
    assert "begin deleting files" not in [one.verb for one in lake.project.log(run).events]


def test_only_manifests_that_may_list_one_of_the_files_are_read(lake: RetentionLake) -> None:
    """What was there before the shadow, and what came since in other partitions, is not."""
    old = lake.catalog.load_table(TARGET).current_snapshot()
    run = cancelled(lake)
    table = lake.catalog.load_table(TARGET)
    table.append(_arrow([(date.fromisoformat(DAYS[6]), 9, 9)]))
    assert old is not None
    (before,) = old.manifests(table.io)
    head = table.current_snapshot()
    assert head is not None
    (since,) = [one for one in head.manifests(table.io) if one != before]
    for manifest in (before, since):
        _damage(local(manifest.manifest_path), "gone")
    lake.later(31)
    lake.project = lake.open()
    done = lake.maintain()
    assert [one["run_id"] for one in done["deleted"]] == [run]
    assert folder(lake, run) == set()


def test_a_target_that_was_replaced_or_is_gone_keeps_them(lake: RetentionLake) -> None:
    run = cancelled(lake)
    lake.later(31)
    before = folder(lake, run)
    old = lake.catalog.load_table(TARGET)
    lake.catalog.drop_table(TARGET)
    assert "no such table" in lake.maintain()["left"][0]["because"]
    lake.catalog.create_table(TARGET, old.schema(), partition_spec=old.spec(),
                              location=f"{old.location()}-again")  # fmt: skip
    assert "is another table" in lake.maintain()["left"][0]["because"]
    assert folder(lake, run) == before


@pytest.mark.req("V4")
def test_an_edited_log_keeps_them(lake: RetentionLake) -> None:
    run = cancelled(lake)
    lake.later(31)
    with lake.killed_at("Shadows.retire:after"):
        lake.maintain()
    events = lake.catalog.load_table("lakehouse_backfill.run_event")
    rows = events.scan().to_arrow()
    details = [text.replace("t__", "u__") for text in rows["detail"].to_pylist()]
    place = rows.schema.get_field_index("detail")
    edited = pa.array(details, rows.schema.field(place).type)
    events.overwrite(rows.set_column(place, rows.schema.field(place), edited))
    before = folder(lake, run)
    lake.project = lake.open()
    (left,) = lake.maintain()["left"]
    assert left["because"].startswith("the log of runs was edited: ")
    assert folder(lake, run) == before


@pytest.mark.long
@pytest.mark.req("T3")
def test_a_deletion_that_dies_between_two_files_is_completed(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    lake = RetentionLake(tmp_path / "made")
    run = cancelled(lake)
    lake.later(31)
    lake.save(tmp_path / "kept")
    points: list[str] = []
    with lake.hooked(points.append):
        lake.maintain()
    first = points.index("RunFiles.delete:before") - 4
    last = points.index("RunFiles.delete:after") + 6
    assert "Runs.append:before" in points[first:last]
    # Each third moment, so both sides of commits: all files are alike. The ends and boundaries are
    # killed in tests/chaos/test_run_files_kills.py.
    for place in range(first, last, 3):
        with subtests.test(place=place, point=points[place]):
            lake.restore(tmp_path / "kept")
            with lake.killed_at(place + 1):
                lake.maintain()
            maintain_again(lake, run)


def maintain_again(lake: RetentionLake, run: str) -> None:
    """What was cut off is completed by the next, and recorded once."""
    lake.maintain()
    assert folder(lake, run) == set()
    verbs = [event.verb for event in lake.project.log(run).events]
    for verb in ("retire", "begin deleting files", "delete files"):
        assert verbs.count(verb) == 1
    assert lake.maintain()["deleted"] == []
    assert lake.project.audit_verify().intact
    assert {path for path in lake.files() if "/silver/t/" in path}


def test_a_store_that_stops_answering_leaves_the_rest_to_the_next_maintain(
    lake: RetentionLake,
) -> None:
    run = cancelled(lake)
    lake.later(31)
    before = folder(lake, run)

    def refuse(point: str) -> None:
        if point == "RunFiles.delete:committing" and len(folder(lake, run)) <= len(before) // 2:
            raise ConnectionError("the store is away")

    with lake.hooked(refuse):
        done = lake.maintain()
    assert (done["deleted"], done["left"][0]["run_id"]) == ([], run)
    assert "does not answer: ConnectionError: the store is away" in done["left"][0]["because"]
    assert set() < folder(lake, run) < before
    maintain_again(lake, run)


ACTS: dict[str, Callable[[RetentionLake, random.Random], Any]] = {}


def act(do: Callable[[RetentionLake, random.Random], Any]) -> Callable[..., Any]:
    ACTS[do.__name__] = do
    return do


def _days(chance: random.Random) -> tuple[str, str]:
    first = chance.randrange(5)
    return DAYS[first], DAYS[first + chance.randrange(1, 3)]


@act
def _cancel_one(lake: RetentionLake, chance: random.Random) -> None:
    cancelled(lake, *_days(chance), name=f"x{chance.random()}")


@act
def _publish_one(lake: RetentionLake, chance: random.Random) -> None:
    lake.published(*_days(chance), name=f"x{chance.random()}")


@act
def _roll_back(lake: RetentionLake, chance: random.Random) -> None:
    if len(lake.project.versions(TARGET).versions) > 1:
        lake.project.rollback(TARGET, None, reason="wrong", by=WHO)


@act
def _take_over(lake: RetentionLake, chance: random.Random) -> None:
    for shadow in lake.shadows():
        files = added_files(lake, shadow.rpartition("t__")[2].replace("_", "-"))
        if files and chance.random() < 0.5:
            _take(lake, chance.choice([TARGET, *lake.shadows()]), chance.choice(files))


@act
def _set_back(lake: RetentionLake, chance: random.Random) -> None:
    table = lake.catalog.load_table(TARGET)
    if lake.project.versions(TARGET).versions[1:]:
        return
    _set_main_back(lake, chance.choice(table.metadata.snapshots).snapshot_id)


@act
def _catch_up(lake: RetentionLake, chance: random.Random) -> None:
    lake.project.publish(catching_up(lake), WHO)


@act
def _wait(lake: RetentionLake, chance: random.Random) -> None:
    lake.later(chance.choice([1, 31, 100]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_after_any_history_nothing_that_a_table_reaches_is_deleted(
    tmp_path: Path, seed: int
) -> None:
    """The oracle walks all tables with PyIceberg; what it reaches has to be on disk."""
    chance, lake = random.Random(seed), RetentionLake(tmp_path)
    deleted = 0
    for _ in range(10):
        name = chance.choice(sorted(ACTS))
        lake.feed()
        try:
            ACTS[name](lake, chance)
        except BackfillError:
            lake.project.recover(None, WHO)
        if chance.random() < 0.4:
            deleted += len(maintain(lake)["deleted"])
        assert reached(lake.catalog) <= on_disk(warehouse(lake))
    lake.later(400)
    maintain(lake)
    assert reached(lake.catalog) <= on_disk(warehouse(lake))
