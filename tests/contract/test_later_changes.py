"""Published runs whose table was partitioned otherwise since, or its partition column renamed.

The rows of such a run may still be there, but no file tells any more which of them are its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import StringType

from lakehouse_backfill.errors import IllegalMove, NotFound, TargetChanged, Unsupported
from lakehouse_backfill.project import Project
from tests.contract.test_stored_lake import PRODUCT, StoredLake, stored

pytestmark = pytest.mark.req("U16")
__all__ = ["stored"]
DAYS = "2024-01-03, 2024-01-04"


def append_live_row(project: Project, where: str = "true") -> None:
    table = project.wiring.catalog.load_table(PRODUCT)
    table.append(table.scan(where, limit=1).to_arrow())


def test_days_in_files_of_months_are_not_known_and_the_run_is_still_told(
    stored: StoredLake,
) -> None:
    project, run = stored.project, stored.runs["second"]
    table = project.wiring.catalog.load_table(PRODUCT)
    with table.update_spec() as change:
        change.remove_field(table.spec().fields[0].name)
    with project.wiring.catalog.load_table(PRODUCT).update_spec() as change:
        change.add_field("day", MonthTransform(), "month")
    append_live_row(project)

    (line,) = project.status(run).runs

    assert line.state == "published"
    assert line.is_safe.startswith("its partitions could not be compared; by its log, ")
    assert f"it is not known for {DAYS}: " in line.readers_see
    assert "lies in partition 2024-01, which holds rows of the scope and of" in line.readers_see
    assert " --dry-run   # says whether the old rows can come back" in line.next_command
    (check,) = [one for one in project.verify(run).checks if one.name == "what readers get now"]
    assert check.ok is None


def test_what_a_run_replaced_is_not_called_restorable_once_its_column_was_renamed(
    stored: StoredLake,
) -> None:
    project, run = stored.project, stored.runs["second"]
    with project.wiring.catalog.load_table(PRODUCT).update_schema() as change:
        change.rename_column("day", "ordered_on")

    (line,) = project.status(run).runs

    lost = "the table has no column day"
    assert line.is_safe == f"not known: what it replaced could not be looked at: {lost}"
    append_live_row(project)
    (line,) = project.status(run).runs
    assert f"it is not known for {DAYS}: {lost}" in line.readers_see
    assert project.evidence(run).report
    with pytest.raises(Unsupported, match="lacks a column that its rows are chosen by") as refused:
        project.rollback(PRODUCT, reason="wrong", by="ana")
    assert "give the column its name back" in refused.value.fix


@pytest.mark.req("U12")
def test_a_previewed_rollback_is_refused_for_live_rows_as_the_rollback_is(
    stored: StoredLake,
) -> None:
    project = stored.project
    assert project.preview_rollback(PRODUCT, by="ana").partitions
    append_live_row(project, "day = '2024-01-03'")

    changed = r"cannot be rolled back: .*\(append by an unnamed writer at .*changed 2024-01-03"
    with pytest.raises(TargetChanged, match=changed) as preview:
        project.preview_rollback(PRODUCT, by="ana")
    with pytest.raises(TargetChanged, match=changed):
        project.rollback(PRODUCT, reason="wrong", by="ana")
    assert preview.value.state == "nothing was changed"


def test_a_target_that_was_dropped_is_called_so(stored: StoredLake) -> None:
    stored.project.wiring.catalog.drop_table(PRODUCT)
    (line,) = stored.project.status(stored.runs["validated"]).runs
    assert ", now dropped); publish looks at" in line.is_safe


@pytest.mark.req("U12")
def test_a_previewed_rollback_is_refused_for_missing_files_as_the_rollback_is(
    stored: StoredLake,
) -> None:
    project, table = stored.project, stored.project.wiring.catalog.load_table(PRODUCT)
    before = stored.facts["versions"][1]["snapshot_id"]
    earlier, now = (
        {one.file.file_path for one in table.scan(snapshot_id=snapshot).plan_files()}
        for snapshot in (before, None)
    )
    Path(min(earlier - now).removeprefix("file://")).unlink()
    with pytest.raises(NotFound, match="is missing"):
        project.preview_rollback(PRODUCT, by="ana")
    with pytest.raises(NotFound, match="is missing"):
        project.rollback(PRODUCT, reason="wrong", by="ana")


@pytest.mark.req("U11")
def test_a_previewed_publication_is_refused_for_live_rows_as_the_publication_is(
    stored: StoredLake,
) -> None:
    project, run = stored.project, stored.runs["validated"]
    project.accept(run, by="ana")
    assert project.preview_publish(run, by="ana").partitions == ("2024-01-01",)
    append_live_row(project, "day = '2024-01-01'")

    changed = r"cannot be published: .*\(append by an unnamed writer at .*changed 2024-01-01"
    with pytest.raises(TargetChanged, match=changed):
        project.preview_publish(run, by="ana")
    with pytest.raises(TargetChanged, match=changed):
        project.publish(run, by="ana")


@pytest.mark.req("U11")
def test_a_previewed_publication_is_refused_as_the_publication_is(stored: StoredLake) -> None:
    project, run = stored.project, stored.runs["validated"]
    project.accept(run, by="ana")
    with project.wiring.catalog.load_table(PRODUCT).update_schema() as change:
        change.add_column("note", StringType())
    for act in (project.preview_publish, project.publish):
        with pytest.raises(TargetChanged, match="its columns changed: note"):
            act(run, by="ana")
    project.cancel(run, by="ana")
    for act in (project.preview_publish, project.publish):
        with pytest.raises(IllegalMove, match="cancelled"):
            act(run, by="ana")


@pytest.mark.req("U11")
def test_a_preview_of_a_published_run_says_that_nothing_would_change(stored: StoredLake) -> None:
    project, run = stored.project, stored.runs["validated"]
    project.accept(run, by="ana")
    before = project.preview_publish(run, by="ana")
    version = project.publish(run, by="ana").version
    after = project.preview_publish(run, by="ana")
    assert (before.was_published, before.version) == (False, version)
    assert (after.was_published, after.version) == (True, version)
