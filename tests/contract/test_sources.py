"""What every kind of source keeps: each record once, also after a kill; a pinned snapshot."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.errors import Conflict
from lakehouse_backfill.project import Project
from tests.support.sources import case as cases
from tests.support.sources.api import ApiCase, Vendor, serving
from tests.support.sources.case import SourceCase, land, require_each_row_once
from tests.support.sources.changes import ChangeCase
from tests.support.sources.files import FileCase, trips

CaseMaker = Callable[[Path], AbstractContextManager[SourceCase]]


@contextmanager
def _api(folder: Path, paging: str) -> Iterator[SourceCase]:
    vendor = Vendor(paging)
    with serving(vendor):
        yield ApiCase(folder, vendor)


#: How each kind is made; a new kind is one more line.
KINDS: dict[str, CaseMaker] = {
    "csv": lambda folder: nullcontext(FileCase(folder)),
    "json": lambda folder: nullcontext(FileCase(folder, "json")),
    "parquet in place": lambda folder: nullcontext(FileCase(folder, "parquet", "")),
    "change log": lambda folder: nullcontext(ChangeCase(folder)),
    "api, cursor": lambda folder: _api(folder, "cursor"),
    "api, whole": lambda folder: _api(folder, "whole"),
    "api, id range": lambda folder: _api(folder, "id_range"),
    "api, export": lambda folder: _api(folder, "export"),
}
#: The kinds that differ in what they do between two commits.
KILLED = ("csv", "api, cursor")


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceCase]:
    with KINDS[request.param](tmp_path / "project") as made:
        yield made


@pytest.mark.req("V2")
def test_each_record_is_landed_once_and_the_snapshot_is_pinned(case: SourceCase) -> None:
    case.deliver(trips(1, 5))
    project = Project.open(case.project)
    looked = project.preview_landing(case.name) if isinstance(case, FileCase) else None
    assert looked is None or [part.action for part in looked.parts] == ["import"]
    first = land(case)
    assert (first.rows, first.resumed) == (5, False)
    require_each_row_once(case)
    case.deliver(trips(6, 3))
    case.deliver(trips(9, 2))
    second = land(case)
    assert second.rows == 5
    again = land(case)
    assert again.rows == 0
    if isinstance(case, FileCase):
        assert (again.landing_id, again.snapshot_id) == (None, second.snapshot_id)
    require_each_row_once(case)
    table = Project.open(case.project).wiring.catalog.load_table(case.table)
    assert table.metadata.refs[str(first.tag)].snapshot_id == first.snapshot_id
    pinned = table.scan(snapshot_id=table.metadata.refs[str(first.tag)].snapshot_id)
    assert pinned.to_arrow().num_rows == 5
    case.require_settled()
    assert set(table.scan().to_arrow()["landing_id"].to_pylist()) == {
        first.landing_id, second.landing_id,
    }  # fmt: skip
    assert {one.summary and one.summary[MODE_PROPERTY] for one in table.snapshots()} == {"live"}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KILLED)
def test_a_landing_that_was_killed_anywhere_is_continued_without_losing_or_doubling_a_row(
    kind: str, tmp_path: Path
) -> None:
    with KINDS[kind](tmp_path / "project") as case:
        require_no_kill_matters(case)


def require_no_kill_matters(case: SourceCase) -> None:
    ids = itertools.count(1, 2)

    def deliver() -> None:
        first = next(ids)
        case.deliver(trips(first, 2))
        if isinstance(case, FileCase):
            case.spoil(f"a{first}")
        case.deliver(trips(next(ids), 2))

    deliver()
    land(case)
    deliver()
    reached = cases.points_of(case)
    moments = different_moments(reached)
    assert {"RawTables.commit:committed 3"} < set(moments)
    assert len(moments) >= 10
    for moment in moments:
        deliver()
        cases.kill_while_landing(case, moment)
        done = land(case)
        assert done.resumed or done.landing_id is None or moment_is_before_the_first_commit(moment)
    require_each_row_once(case)
    case.require_settled()


def different_moments(reached: list[str]) -> list[str]:
    """Return `POINT COUNT` for each point between which and the one before it something happens.

    Of each commit the first six count, so that later checkpoints and the end are among them.
    """
    seen: Counter[str] = Counter()
    moments = []
    for before, point in itertools.pairwise(["", *reached]):
        seen[point] += 1
        is_same = point.endswith(":before") or before.endswith(":committed")
        if not is_same and seen[point] <= (6 if point.startswith("RawTables.commit:c") else 2):
            moments.append(f"{point} {seen[point]}")
    return moments


def moment_is_before_the_first_commit(moment: str) -> bool:
    return moment in {
        f"RawTables.{name} 1"
        for name in (
            "ensure:before", "ensure:after", "stage:before", "stage:after", "commit:before",
            "commit:committing",
        )
    } | {"RawTables.stage:after 2"}  # fmt: skip


@pytest.mark.parametrize("moment", ["Catalog.create_table:committed 1", "RawTables.ensure:after 1"])
def test_a_first_landing_that_was_killed_is_given_again(moment: str, tmp_path: Path) -> None:
    case = FileCase(tmp_path / "project")
    case.deliver(trips(1, 4))
    cases.kill_while_landing(case, moment)
    assert land(case).rows == 4
    require_each_row_once(case)


def test_of_two_processes_that_land_a_source_one_is_refused_and_no_row_is_doubled(
    tmp_path: Path,
) -> None:
    from lakehouse_backfill import fault_points

    case = FileCase(tmp_path / "project")
    case.deliver(trips(1, 4))
    other: list[object] = []
    outer = threading.get_ident()

    def let_another_one_land(point: str) -> None:
        if point == "RawTables.stage:after" and threading.get_ident() == outer and not other:
            other.append(None)
            worker = threading.Thread(target=lambda: other.append(land(case).rows))
            worker.start()
            worker.join()

    fault_points.install_hook(let_another_one_land)
    with pytest.raises(Conflict, match="another process lands trips"):
        land(case)
    fault_points.install_hook(None)
    assert other == [None, 4]
    assert land(case).landing_id is None
    require_each_row_once(case)
