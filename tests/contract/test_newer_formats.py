"""Tables of format 4 and above are refused on every way, by one check, and nothing is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.iceberg.shadow.branch_table import adapt_table_names
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.project import Project
from tests.contract.test_stored_lake import PRODUCT, StoredLake, stored
from tests.support.sources.events import EventCase, Made
from tests.support.sources.files import FileCase, trips
from tests.support.sources.migration import MigrationCase, trip

pytestmark = [pytest.mark.req("U16"), pytest.mark.in_turn(2, of="file")]
__all__ = ["stored"]
SOURCE = "bronze.orders"


def refused(table: str) -> Any:
    """Expect the one refusal, which names the table."""
    return pytest.raises(
        Unsupported, match=f"^unsupported: {re.escape(table)} is of format version 4: "
    )


def upgrade(catalog: Any, table: str) -> Callable[[], None]:
    """Make a table one of format 4, as another engine does; return a check that it is as it was."""
    location = catalog.load_table(table).metadata_location
    path = Path(location.removeprefix("file://"))
    text = json.dumps(json.loads(path.read_text()) | {"format-version": 4})
    path.write_text(text)

    def require_unchanged() -> None:
        with refused(table):
            catalog.load_table(table)
        assert path.read_text() == text
        newest = max(path.parent.glob("*.metadata.json"), key=lambda one: one.name)
        assert newest == path

    return require_unchanged


Way = Callable[[Project, dict[str, str], Path], Any]
#: By the table that is of format 4; the stored lake has two published runs and two open ones.
OF_TARGET: dict[str, Way] = {
    "product add": lambda project, _, __: project.add_product(PRODUCT),
    "plan": lambda project, _, jobs: project.plan(jobs / "planned.yaml", by="ana"),
    "plan --revise": lambda project, runs, jobs: project.plan(
        jobs / "planned.yaml", by="ana", revise=runs["planned"]
    ),
    "try": lambda project, _, jobs: project.try_partition(jobs / "planned.yaml", by="ana"),
    "publish --dry-run": lambda project, runs, _: project.preview_publish(
        runs["validated"], by="ana"
    ),
    "publish": lambda project, runs, _: project.publish(runs["validated"], by="ana"),
    "diff RUN": lambda project, runs, _: project.diff(runs["validated"]),
    "diff OLD NEW": lambda project, _, __: project.diff(PRODUCT, PRODUCT),
    "reconcile": lambda project, _, __: project.reconcile(PRODUCT, PRODUCT),
    "accepted": lambda project, _, __: project.accepted(PRODUCT),
    "verify": lambda project, runs, _: project.verify(runs["second"]),
    "verify --deep": lambda project, runs, _: project.verify(runs["second"], deep=True),
    "reproduce": lambda project, runs, _: project.reproduce(runs["second"], by="ana"),
    "rollback --dry-run": lambda project, _, __: project.preview_rollback(PRODUCT, by="ana"),
    "rollback": lambda project, _, __: project.rollback(PRODUCT, reason="wrong", by="ana"),
    "audit guarantees": lambda project, _, __: project.audit_guarantees(),
    "validate": lambda project, runs, _: project.validate(runs["validated"], by="ana"),
    "run": lambda project, runs, _: project.run(runs["planned"], by="ana"),
}


def test_no_verb_takes_a_target_of_format_4(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, jobs = stored.runs, stored.project.folder / "jobs"
    stored.project.accept(runs["validated"], by="ana")
    require_unchanged = upgrade(stored.project.wiring.catalog, PRODUCT)
    project = Project.open(stored.project.folder)
    for name, way in OF_TARGET.items():
        with refused("silver.orders"), monkeypatch.context() as patched:
            if name.startswith("diff"):
                # Starting Spark would be another error.
                patched.setenv("LAKEHOUSE_BACKFILL_JAVA_HOME", "/nonsense")
            way(project, runs, jobs)
        require_unchanged()


def test_status_and_evidence_say_what_they_cannot_read_of_a_target_of_format_4(
    stored: StoredLake,
) -> None:
    stored.project.accept(stored.runs["validated"], by="ana")
    require_unchanged = upgrade(stored.project.wiring.catalog, PRODUCT)
    project = Project.open(stored.project.folder)
    unread = "silver.orders is of format version 4: "
    for name, state in (
        ("second", "published"),
        ("planned", "approved"),
        ("validated", "accepted"),
    ):
        (line,) = project.status(stored.runs[name]).runs
        assert line.state == state
        assert f"could not be looked at: {unread}" in line.is_safe
        assert not line.is_safe.startswith("yes")
        assert (f"it is not known for 2024-01-03, 2024-01-04: {unread}" in line.readers_see) is (
            name == "second"
        )
    page = Path(project.evidence(stored.runs["second"]).report).read_text()
    assert unread in page
    require_unchanged()


def test_clean_up_leaves_a_table_of_format_4_alone(stored: StoredLake) -> None:
    require_unchanged = upgrade(stored.project.wiring.catalog, PRODUCT)
    project = Project.open(stored.project.folder)
    done = project.maintain(by="ana")
    assert {one.kind for one in done.retired} <= {"control files"}
    assert any(f"{PRODUCT} is of format version 4: " in one.because for one in done.kept)
    require_unchanged()
    (found,) = project.stale().products
    assert "silver.orders is of format version 4: " in found.notes[0]


def break_off(point: str) -> None:
    """Die, as far as the run is concerned, before the commit to the target."""
    if point == "Publisher.adopt:before":
        raise RuntimeError(point)


def test_no_publication_that_stopped_half_way_is_finished_on_a_table_of_format_4(
    stored: StoredLake,
) -> None:
    run = stored.runs["validated"]
    stored.project.accept(run, by="ana")
    fault_points.install_hook(break_off)
    try:
        with pytest.raises(RuntimeError, match=r"Publisher\.adopt:before"):
            Project.open(stored.project.folder).publish(run, by="ana")
    finally:
        fault_points.install_hook(None)
    require_unchanged = upgrade(stored.project.wiring.catalog, PRODUCT)
    project = Project.open(stored.project.folder)
    with refused(PRODUCT):
        project.recover(run, by="ana")
    # Of all runs, a bad one does not stop the others.
    (found,) = project.recover(None, by="ana").actions
    assert not found.is_done
    assert found.result.startswith("silver.orders is of format version 4: ")
    require_unchanged()


def test_an_input_of_format_4_is_refused(stored: StoredLake) -> None:
    require_unchanged = upgrade(stored.project.wiring.catalog, SOURCE)
    project = Project.open(stored.project.folder)
    jobs = project.folder / "jobs"
    with refused("bronze.orders"):
        project.plan(jobs / "planned.yaml", by="ana")
    with refused("bronze.orders"):
        project.run(stored.runs["planned"], by="ana")
    require_unchanged()


def test_nothing_is_landed_in_a_table_of_format_4(tmp_path: Path) -> None:
    case = FileCase(tmp_path / "project")
    case.deliver(trips(1, 2))
    Project.open(case.project).land(case.name)
    require_unchanged = upgrade(Project.open(case.project).wiring.catalog, case.table)
    case.deliver(trips(3, 2))
    for way in (Project.land, Project.preview_landing):
        with refused("bronze.trips"):
            way(Project.open(case.project), case.name)
    require_unchanged()


@pytest.mark.parametrize("table", ["bronze.order_events", "silver.balances"])
def test_no_events_are_replayed_from_or_into_a_table_of_format_4(
    table: str, tmp_path: Path
) -> None:
    case = EventCase(tmp_path / "project")
    case.append([Made("e1", "A", 1)])
    case.replay()
    case.append([Made("e2", "A", 2)])
    require_unchanged = upgrade(Project.open(case.project).wiring.catalog, table)
    with refused(table):
        case.replay()
    require_unchanged()


def test_no_migration_goes_into_a_table_of_format_4_and_none_is_taken_back(tmp_path: Path) -> None:
    case = MigrationCase(tmp_path / "project")
    case.write("day=2023-01-01/a.parquet", [trip(1)])
    case.migrate()
    require_unchanged = upgrade(case.catalog(), case.table)
    case.write("day=2023-01-02/b.parquet", [trip(2)])
    for way in (case.migrate, case.undo):
        with refused("silver.trips"):
            way()
        require_unchanged()


def test_a_rest_server_may_tell_of_a_table_of_format_4(tmp_path: Path) -> None:
    case = EventCase(tmp_path / "project")
    table = case.table()
    answer = json.loads(table.metadata.model_dump_json(by_alias=True)) | {"format-version": 4}
    with refused("the table"), translate_errors():
        TableResponse.model_validate({"metadata": answer})


def test_a_reader_that_knows_format_4_does_not_open_the_way(tmp_path: Path) -> None:
    catalog = Project.open(EventCase(tmp_path / "project").project).wiring.catalog
    catalog.create_table("bronze.t", Schema(NestedField(1, "id", LongType())))
    plain = type(catalog).load_table

    class Newer(type(catalog)):  # type: ignore[misc]
        def load_table(self, identifier: Any) -> Any:
            table = plain(self, identifier)
            table.metadata = table.metadata.model_copy(update={"format_version": 4})
            return table

    newer = Newer(catalog.name, **catalog.properties)
    adapt_table_names(newer)
    with refused("bronze.t"):
        newer.load_table("bronze.t")
