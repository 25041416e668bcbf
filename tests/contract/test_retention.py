"""maintain on a real catalog: what goes, what stays, races, and deaths at every point."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.metadata import NEVER_EXPIRES_MS
from lakehouse_backfill.errors import BackfillError, Blocked, NotAllowed, RunMoved
from tests.chaos.aging import register_aged
from tests.chaos.lab import DAYS, SOURCE, TARGET
from tests.support.lakes.retention import SHADOWS, WHO, RetentionLake, names

pytestmark = [pytest.mark.req("U12"), pytest.mark.in_turn(2, of="file")]

SHORT = "keep_versions: {count: 2, days: 0}\n"


class SavedLake(RetentionLake):
    """A lake in one folder for all tests; what many of them begin from is made once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "lake")
        self._states = root / "states"
        self._found: dict[str, Any] = {}

    def once(self, state: str, make: Callable[[], Any]) -> Any:
        """Go to a state of a new lake that `make` brings about; give what `make` gave."""
        state = f"{state} {len(self.contract)}"
        if state not in self._found:
            self._found[state] = make()
            self.save(self._states / state)
        else:
            self.restore(self._states / state)
        return self._found[state]

    def begin(self) -> None:
        """Be a new lake again, at the time of this machine."""
        self.keep("")
        self.clock.ahead = timedelta()
        self.once("new", lambda: None)

    @property
    def contract(self) -> str:
        """What the contract says."""
        return (self.lab.folder / f"catalog/contracts/{TARGET}.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedLake:
    return SavedLake(tmp_path_factory.mktemp("retention"))


@pytest.fixture
def lake(saved: SavedLake) -> SavedLake:
    saved.begin()
    return saved


def at(point: str, act: Callable[[], None]) -> None:
    """Do something the first time that this process gets to a point."""
    done: list[str] = []

    def hook(name: str) -> None:
        if name == point and not done:
            done.append(name)
            act()

    fault_points.install_hook(hook)


def published(lake: SavedLake) -> str:
    """A run that is published."""
    run: str = lake.once("published", lake.published)
    return run


def rolled_back(lake: SavedLake) -> str:
    """A run that was published and rolled back."""

    def make() -> str:
        run = published(lake)
        lake.project.rollback(TARGET, 0, reason="wrong", by=WHO)
        return run

    run: str = lake.once("rolled back", make)
    return run


def three_versions(lake: SavedLake) -> list[str]:
    """Three runs of the same days, each published."""

    def make() -> list[str]:
        runs = []
        for _ in range(3):
            runs.append(lake.published())
            lake.feed()
        return runs

    runs: list[str] = lake.once("three versions", make)
    return runs


def three_old_versions(lake: SavedLake) -> None:
    """Of three versions two are kept, a month after the last one."""
    lake.keep(SHORT)
    three_versions(lake)
    lake.later(31)


def test_a_run_keeps_everything_while_its_lease_lasts_and_nothing_after(
    lake: SavedLake,
) -> None:
    run = published(lake)
    before, files = lake.maintain(), lake.files()
    assert before["retired"] == []
    assert {item["owner"] for item in before["kept"] if item["kind"] == "pin"} == {"ana"}
    lake.later(31)
    seen = lake.maintain(dry_run=True)
    done = lake.maintain()
    pins = [f"{SOURCE}@lhb-pin-{run}-s", f"{TARGET}@lhb-pin-{run}"]
    assert names(done["retired"], "pin") == names(seen["retired"], "pin") == pins
    assert names(done["retired"], "shadow") == [f"{SHADOWS}.t__{run.replace('-', '_')}"]
    assert (lake.shadows(), lake.tags(SOURCE)) == ([], {})
    assert lake.files() == files
    assert sorted(name.partition("-")[2].rpartition("-")[0] for name in lake.tags()) == [
        "before", "v1",
    ]  # fmt: skip


@pytest.mark.req("D5")
def test_a_run_whose_scratch_table_went_can_still_be_published(lake: SavedLake) -> None:
    run = lake.accepted()
    (shadow,) = lake.shadows()
    left = f"{shadow}__again_0123abcd"
    register_aged(lake.catalog, shadow, left, days=0)
    assert lake.maintain()["retired"] == []
    lake.later(1)
    assert names(lake.maintain()["retired"], "shadow") == [left]
    assert lake.shadows() == [shadow]
    assert "retire" not in [event.verb for event in lake.project.log(run).events]
    assert lake.project.publish(run, WHO).version == 1


def of_format_4(metadata: str) -> str:
    return json.dumps(json.loads(metadata) | {"format-version": 4})


@pytest.mark.parametrize("damage", [of_format_4, lambda _: "lost"])
def test_a_shadow_that_cannot_be_read_keeps_its_base_and_stops_nothing_else(
    lake: SavedLake, damage: Callable[[str], str]
) -> None:
    run = lake.published()
    (shadow,) = lake.shadows()
    broken, left = (f"{shadow}__again_{number}" for number in ("0123abcd", "4567abcd"))
    for name in (broken, left):
        register_aged(lake.catalog, shadow, name, days=3)
    lake.later(4_000)
    for name in (shadow, broken):
        location = lake.catalog.load_table(name).metadata_location
        file = Path(location.removeprefix("file://"))
        file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
    done = lake.maintain()
    assert names(done["retired"], "shadow") == [left]
    reasons = {one["name"]: one["because"] for one in done["kept"]}
    for name in (shadow, broken):
        assert reasons[name].startswith(f"{name} cannot be read, nothing on it goes: ")
    assert reasons[f"{TARGET}@lhb-pin-{run}"] == (
        f"what was cloned by {run} is kept, and shares its files"
    )


def test_a_second_maintain_finds_nothing_and_writes_nothing(lake: SavedLake) -> None:
    three_versions(lake)
    lake.later(31)
    assert lake.maintain()["retired"]
    points: list[str] = []
    fault_points.install_hook(points.append)
    assert lake.maintain()["retired"] == []
    assert [point for point in points if point.endswith(":committing")] == []
    assert lake.project.audit_verify().intact


@pytest.mark.parametrize("damage", [of_format_4, lambda _: "lost"])
def test_a_table_that_cannot_be_read_keeps_what_depends_on_it_and_stops_nothing_else(
    lake: SavedLake, damage: Callable[[str], str]
) -> None:
    three_old_versions(lake)
    files_apart = {"control tables"}  # Nothing in them is of a table of the user.
    everything = {*names(lake.maintain(dry_run=True)["retired"])} - files_apart
    held = lake.tags(), lake.tags(SOURCE)
    for table in (SOURCE, TARGET):
        location = lake.catalog.load_table(table).metadata_location
        file = Path(location.removeprefix("file://"))
        text = file.read_text(encoding="utf-8")
        file.write_text(damage(text), encoding="utf-8")
        done = lake.maintain(dry_run=table == SOURCE)
        reasons = [one["because"] for one in done["kept"] if one["name"].startswith(f"{table}@")]
        assert reasons
        assert all(f"{table} cannot be read, nothing on it goes: " in one for one in reasons)
        gone = {*names(done["retired"])} - files_apart
        assert not [one for one in gone if one.startswith((f"{table}@", f"{table} version"))]
        assert bool(gone) is (table == SOURCE)
        if table == TARGET:
            with pytest.raises(BackfillError, match=f"nothing can be removed from {TARGET}: "):
                lake.project.maintain(WHO, TARGET, "request 4711")
        file.write_text(text, encoding="utf-8")
    assert (lake.tags(), lake.tags(SOURCE)) == held
    assert {*names(lake.maintain()["retired"])} - files_apart == everything


@pytest.mark.parametrize("state", ["planned", "staged", "accepted", "rejected"])
def test_an_open_run_keeps_its_pins_and_shadow_however_old_it_is(
    lake: SavedLake, state: str
) -> None:
    if state == "planned":
        lake.project.plan(lake.lab.manifest("a.yaml", DAYS[1], DAYS[3]), by=WHO)
    else:
        run = lake.accepted() if state == "accepted" else lake.staged()
        if state == "rejected":
            lake.project.reject(run, WHO, "no")
    tags, shadows = lake.tags(), lake.shadows()
    lake.later(4000)
    assert names(lake.maintain()["retired"]) in ([], ["control tables"])
    assert (lake.tags(), lake.shadows()) == (tags, shadows)


def test_a_version_that_was_let_go_cannot_be_gone_back_to_and_rollback_says_why(
    lake: SavedLake,
) -> None:
    three_old_versions(lake)
    done = lake.maintain()
    assert [one["version"] for one in done["versions_let_go"]] == [0, 1]
    for version in (0, 1):
        with pytest.raises(Blocked, match=r"ana let it go on .* older than the newest 2 versions"):
            lake.project.rollback(TARGET, version, reason="wrong", by=WHO)
    back = lake.project.rollback(TARGET, None, reason="wrong", by=WHO)
    assert back.version == 2
    with pytest.raises(Blocked, match="let it go"):
        lake.project.rollback(TARGET, None, reason="wrong", by=WHO)


def test_a_rolled_back_run_whose_shadow_was_let_go_says_so_when_it_is_published_again(
    lake: SavedLake,
) -> None:
    run = rolled_back(lake)
    lake.later(31)
    lake.maintain()
    with pytest.raises(Blocked, match=f"{run} cannot be published again: ana let go on"):
        lake.project.publish(run, WHO)
    assert lake.project.status(run).runs[0].state == "rolled_back"


def test_publishing_again_right_before_a_run_is_told_keeps_everything(lake: SavedLake) -> None:
    run = rolled_back(lake)
    lake.later(31)
    shadows, other = lake.shadows(), lake.open()
    at("Runs.append:before", lambda: other.publish(run, WHO))
    done = lake.maintain()
    assert names(done["retired"], "shadow") == names(done["retired"], "pin") == []
    assert lake.shadows() == shadows
    assert lake.project.status(run).runs[0].state == "published"


def test_a_rollback_right_before_versions_are_let_go_keeps_them(lake: SavedLake) -> None:
    three_old_versions(lake)
    tags, other = lake.tags(), lake.open()
    at("Versions.move:before", lambda: other.rollback(TARGET, 1, reason="wrong", by=WHO))
    done = lake.maintain()
    assert (done["versions_let_go"], names(done["retired"], "tag")) == ([], [])
    assert set(tags) <= set(lake.tags())
    assert lake.project.versions(TARGET).versions[0].version == 1


def test_versions_that_go_while_a_rollback_is_worked_out_stop_it(lake: SavedLake) -> None:
    three_old_versions(lake)
    other = lake.open()
    at("Versions.move:before", lambda: drop_hook_and(lambda: other.maintain(WHO)))
    with pytest.raises(BackfillError, match="versions have expired meanwhile"):
        lake.project.rollback(TARGET, 1, reason="wrong", by=WHO)
    assert lake.project.versions(TARGET).versions[0].version == 3


def drop_hook_and(act: Callable[[], Any]) -> None:
    fault_points.install_hook(None)
    act()


def test_a_pin_that_is_made_between_decision_and_commit_survives(lake: SavedLake) -> None:
    """Also where the commit takes snapshots out: it is worked out again with the new pin."""
    lake.keep(SHORT)
    lake.once("republished", lake.republished)
    lake.later(200)
    oldest = lake.catalog.load_table(TARGET).metadata.snapshots[0].snapshot_id
    pins = lake.project.wiring.context.pins
    at("Pins.expire:committing", lambda: pins.pin(TARGET, oldest, "somebodys"))
    done = lake.maintain()
    assert lake.tags()["somebodys"] == oldest
    assert lake.rows(snapshot_id=oldest)
    kept = [item["because"] for item in done["kept"] if item["kind"] == "tag"]
    assert any("an older snapshot is held by another tag or branch" in text for text in kept)
    lake.catalog.load_table(TARGET).manage_snapshots().remove_tag("somebodys").commit()
    lake.maintain()
    assert oldest not in [s.snapshot_id for s in lake.catalog.load_table(TARGET).metadata.snapshots]


def test_a_tombstone_that_is_younger_than_the_tables_own_history_waits(lake: SavedLake) -> None:
    lake.keep(SHORT)
    lake.once("republished", lake.republished)
    days = {"history.expire.max-snapshot-age-ms": str(300 * 24 * 3600 * 1000)}
    with lake.catalog.load_table(TARGET).transaction() as change:
        change.set_properties(days)
    lake.later(200)
    snapshots = [s.snapshot_id for s in lake.catalog.load_table(TARGET).metadata.snapshots]
    done = lake.maintain()
    kept = [item["because"] for item in done["kept"] if item["kind"] == "tag"]
    assert any("it is younger than the history that the table keeps" in text for text in kept)
    assert [s.snapshot_id for s in lake.catalog.load_table(TARGET).metadata.snapshots] == snapshots
    lake.later(101)
    lake.maintain()
    left = [s.snapshot_id for s in lake.catalog.load_table(TARGET).metadata.snapshots]
    assert len(left) < len(snapshots)


def test_an_erasure_lets_all_but_the_accepted_version_go_at_once_and_for_the_record(
    lake: SavedLake,
) -> None:
    runs = three_versions(lake)
    with pytest.raises(NotAllowed):
        lake.project.maintain("eve", TARGET, "request 4711")
    done = lake.project.maintain(WHO, TARGET, "request 4711", dry_run=True)
    assert done == replace(lake.project.maintain(WHO, TARGET, "request 4711"), dry_run=True)
    assert [one["version"] for one in done.versions_let_go] == [0, 1, 2]
    assert (lake.tags(), lake.shadows()) == ({}, [])
    assert len(lake.tags(SOURCE)) == 3
    with pytest.raises(Blocked, match=r"ana let it go on .* erasure, by ana: request 4711"):
        lake.project.rollback(TARGET, 1, reason="wrong", by=WHO)
    notes = [lake.project.log(run).events[-1].verb for run in runs]
    assert notes == ["retire"] * 3
    assert lake.project.audit_verify().intact


def test_an_erasure_leaves_open_runs_alone_and_names_them(lake: SavedLake) -> None:
    published(lake)
    lake.feed()
    run = lake.staged(name="b")
    done = lake.project.maintain(WHO, TARGET, "request 4711")
    kept = {item.because for item in done.kept if item.run_id == run}
    assert kept == {f"{run} is staged: open runs keep everything (wrong rate)"}
    assert list(lake.tags()) == [f"lhb-pin-{run}"]
    assert len(lake.shadows()) == 1


def test_fences_of_closed_runs_go_and_no_property_of_them_is_left(lake: SavedLake) -> None:
    run = lake.staged()
    context = lake.project.wiring.context
    context.runs.fence(run, 5)
    lake.project.cancel(run, WHO, "no")
    lake.later(10)
    lake.maintain()
    assert context.runs.fenced() == (run,)
    lake.later(21)
    assert names(lake.maintain()["retired"], "fence") == [run]
    for name in lake.catalog.list_tables("lakehouse_backfill"):
        assert not [key for key in lake.catalog.load_table(name).properties if run in key]
    with pytest.raises(RunMoved):
        context.runs.renew(run, 3, lake.clock.now())


def test_pins_have_leases_before_they_are_made_and_those_of_a_plan_that_died_end(
    lake: SavedLake,
) -> None:
    file = lake.lab.manifest("a.yaml", DAYS[1], DAYS[3])
    with lake.killed_at("Pins.pin:before"):
        lake.project.plan(file, by=WHO)
    assert lake.tags() == {}
    assert len(lake.project.wiring.context.evidence.active_leases()) == 2
    with lake.killed_at("Evidence.record:before"):
        lake.project.plan(file, by=WHO)
    (tag,) = lake.tags()
    refs = lake.catalog.load_table(TARGET).metadata.refs
    assert refs[tag].max_ref_age_ms == NEVER_EXPIRES_MS
    assert lake.maintain()["retired"] == []
    lake.later(31)
    assert len(names(lake.maintain()["retired"], "pin")) == 2
    assert (lake.tags(), lake.tags(SOURCE)) == ({}, {})
    assert lake.project.wiring.context.evidence.active_leases() == ()


def _messy(root: Path) -> RetentionLake:
    """Everything that can be let go at once: versions, tags, pins, shadows, a fence, files."""
    lake = RetentionLake(root, SHORT)
    lake.republished()
    lake.feed()
    lake.published(name="b")
    lake.feed()
    cancelled = lake.staged(DAYS[4], DAYS[6], name="c")
    lake.project.cancel(cancelled, WHO, "no")
    lake.project.wiring.context.runs.fence(cancelled, 9)
    lake.later(200)
    return lake


def _state(lake: RetentionLake) -> dict[str, Any]:
    """What is left: names, without the ids that differ from one time to the next."""
    metadata = lake.catalog.load_table(TARGET).metadata
    context = lake.project.wiring.context
    return {
        "tags": sorted(lake.tags()), "source": sorted(lake.tags(SOURCE)),
        "shadows": lake.shadows(), "rows": lake.rows(), "files": len(lake.files()),
        "snapshots": [s.snapshot_id for s in metadata.snapshots],
        "expired": [r.version for r in context.versions.history(TARGET) if r.action == "expire"],
        "leases": context.evidence.active_leases(), "fences": context.runs.fenced(),
        "notes": sorted(
            run.run_id for run in context.runs.list(open_only=False)
            for event in context.runs.events(run.run_id) if event.verb == "retire"
        ),
    }  # fmt: skip


def test_doctor_warns_of_a_snapshot_that_lost_its_tag_and_whose_expiry_would_cost_live_files(
    lake: SavedLake,
) -> None:
    run = rolled_back(lake)
    assert history(lake)["ok"]
    tags = lake.tags()
    (snapshot_id,) = [held for name, held in tags.items() if name.startswith("lhb-v1-")]
    for tag in [name for name, held in tags.items() if held == snapshot_id]:
        assert history(lake)["ok"]
        lake.catalog.load_table(TARGET).manage_snapshots().remove_tag(tag).commit()
    found = history(lake)
    assert (found["ok"], found["detail"]) == (
        False,
        f"{TARGET}: the expiry of snapshot {snapshot_id} would delete live files: it removed 2 "
        "files that are live again, and no tag holds it",
    )
    assert f"AS OF VERSION {snapshot_id}" in found["fix"]
    lake.catalog.load_table(TARGET).manage_snapshots().create_tag(snapshot_id, "held").commit()
    assert history(lake)["ok"]
    assert run


def history(lake: SavedLake, name: str = "history") -> dict[str, Any]:
    """What doctor says of the tables' histories, or of something else."""
    return next(one.to_dict() for one in lake.project.doctor().checks if one.name == name)


def test_doctor_warns_of_many_files_of_control_tables_that_no_snapshot_reaches(
    lake: SavedLake,
) -> None:
    published(lake)
    folder = next(lake.lab.folder.glob("**/lakehouse_backfill/run_event/metadata"))
    for number in range(2001):
        path = folder / f"left-{number}.avro"
        path.touch()
        os.utime(path, (0, 0))
    found = history(lake, "control tables")
    assert (found["ok"], found["fix"]) == (False, "lakehouse-backfill maintain")
    assert found["detail"] == "2001 files, 0 bytes, that no snapshot reaches: more than 2000"
    lake.maintain()
    found = history(lake, "control tables")
    assert (found["ok"], found["detail"]) == (True, "0 files, 0 bytes, that no snapshot reaches")


#: Where maintain may die: each commit, and between them. `nth`: the first or the last time there.
DEATHS = (
    ("Versions.move:before", 0), ("ControlLog.accepted_output_version:committing", 0),
    ("ControlLog.accepted_output_version:committed", 0), ("Runs.append:before", 0),
    ("ControlLog.run_event:committed", 0), ("Runs.append:after", -1),
    ("Shadows.drop:committing", 0), ("Shadows.drop:committed", 0), ("Shadows.retire:after", -1),
    ("RunFiles.delete:before", 0), ("RunFiles.delete:committing", 0),
    ("RunFiles.delete:committed", 0), ("RunFiles.delete:committed", -1),
    ("RunFiles.delete:after", 0), ("Pins.expire:committing", 0), ("Pins.expire:committed", 0),
    ("Pins.expire:committed", -1), ("Evidence.end_leases:before", 0),
    ("ControlLog.pin_lease:committing", 0), ("ControlLog.pin_lease:committed", 0),
    ("Runs.lift_fences:before", 0), ("ControlLog.backfill_chunk_run:committed", 0),
    ("ControlLog.evidence:committing", 0), ("ControlLog.reject_record:committed", 0),
    ("Audit.delete_orphans:before", 0),
    ("ControlFiles.delete:committing", 0), ("ControlFiles.delete:committed", 0),
)  # fmt: skip


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> tuple[RetentionLake, Path, list[str], Any]:
    """A lake to begin from, saved; the points that maintain passes there, and what is left then."""
    root = tmp_path_factory.mktemp("messy")
    lake = _messy(root / "lake")
    lake.save(root / "kept")
    points: list[str] = []
    with lake.hooked(points.append):
        lake.maintain()
    return lake, root / "kept", points, _state(lake)


@pytest.mark.req("T3")
def test_maintain_passes_the_points_at_which_it_is_killed_and_no_other_method(messy: Any) -> None:
    _, _, points, left = messy
    assert {name.rpartition(":")[0] for name, _ in DEATHS} >= {
        point.rpartition(":")[0] for point in points
    }
    assert left["fences"] == left["leases"] == ()
    assert left["expired"]


@pytest.mark.long
@pytest.mark.req("T3")
@pytest.mark.parametrize(("point", "nth"), DEATHS)
def test_a_maintain_that_dies_anywhere_is_finished_by_the_next(
    messy: Any, point: str, nth: int
) -> None:
    lake, kept, points, wanted = messy
    places = [number for number, name in enumerate(points) if name == point]
    lake.restore(kept)
    with lake.killed_at(places[nth] + 1):
        lake.maintain()
    lake.maintain()
    assert _state(lake) == wanted
