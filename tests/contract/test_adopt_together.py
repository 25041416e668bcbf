"""Adopting in two tables by one commit of the catalog: both change, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.commit import multi_table
from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, TooBusy, Unsupported
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

OTHER = "silver.other"
TABLES = (TARGET, OTHER)
pytestmark = pytest.mark.req("U2")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def pair(kit: Kit) -> Kit:
    """Two tables by day with three days of one row each."""
    for name in TABLES:
        kit.create(("d", "identity"), name=name)
        kit.append(*(row(number, day) for number, day in enumerate(DAYS)), name=name)
    return kit


def _staged(kit: Kit) -> tuple[AdoptRequest, ...]:
    return tuple(
        kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]}, f"r{number}", name)
        for number, name in enumerate(TABLES)
    )


def _values(kit: Kit) -> list[list[str]]:
    return [[found[3] for found in kit.rows(name)] for name in TABLES]


NEW, OLD = [["old", "new", "old"]] * 2, [["old", "old", "old"]] * 2


def _around(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[], Any] = lambda: None,
) -> None:
    """Let something happen right before and after the next commit."""
    through = multi_table.commit_tables

    def commit_tables(catalog: Any, changes: Sequence[Any]) -> None:
        monkeypatch.setattr(multi_table, "commit_tables", through)
        before()
        through(catalog, changes)
        after()

    monkeypatch.setattr(multi_table, "commit_tables", commit_tables)


def _lose_answer() -> None:
    raise ConnectionResetError("the server closed the connection")


def test_both_tables_get_their_files_tags_and_tokens(pair: Kit) -> None:
    before = [pair.head(name) for name in TABLES]
    requests = _staged(pair)

    swaps = pair.publisher.adopt_together(requests)

    assert _values(pair) == NEW
    assert [swap.snapshot_id for swap in swaps] == [pair.head(name) for name in TABLES]
    assert [swap.before_snapshot_id for swap in swaps] == before
    for number, (name, swap) in enumerate(zip(TABLES, swaps, strict=True)):
        refs = pair.live.load_table(name).refs()
        assert refs[f"lhb-before-r{number}"].snapshot_id == swap.before_snapshot_id
        assert refs[f"lhb-after-r{number}"].snapshot_id == swap.snapshot_id
    again = IcebergPublisher(catalog_of(pair.root)).adopt_together(requests)
    assert [swap.snapshot_id for swap in again] == [swap.snapshot_id for swap in swaps]
    assert [pair.head(name) for name in TABLES] == [swap.snapshot_id for swap in swaps]


def test_live_commits_elsewhere_in_one_of_them_cost_an_attempt(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    _around(monkeypatch, before=lambda: pair.append(row(20, DAYS[2], "live"), name=OTHER))

    swaps = pair.publisher.adopt_together(requests)

    assert {swap.attempts for swap in swaps} == {2}
    assert _values(pair) == [["old", "new", "old"], ["old", "new", "old", "live"]]


def test_a_live_commit_to_the_partition_of_one_keeps_both_back(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    head = pair.head(TARGET)
    _around(monkeypatch, before=lambda: pair.append(row(20, DAYS[1], "live"), name=OTHER))

    with pytest.raises(TargetChanged, match=r"silver\.other"):
        pair.publisher.adopt_together(requests)

    assert pair.head(TARGET) == head
    assert _values(pair) == [OLD[0], ["old", "old", "old", "live"]]


def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    _around(monkeypatch, after=_lose_answer)

    pair.publisher.adopt_together(requests)

    assert _values(pair) == NEW
    assert [len(pair.publisher.drifts(name, None, None)) for name in TABLES] == [2, 2]


def test_an_outcome_that_nobody_can_tell_is_said_so_and_the_next_call_makes_it(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    _around(monkeypatch, before=_lose_answer)
    with pytest.raises(OutcomeUnknown) as unknown:
        pair.publisher.adopt_together(requests)
    assert "either all as before or all swapped" in unknown.value.state
    assert _values(pair) == OLD

    pair.publisher.adopt_together(requests)

    assert _values(pair) == NEW


def test_what_had_landed_alone_is_left_as_it_is(pair: Kit) -> None:
    requests = _staged(pair)
    first = pair.publisher.adopt(requests[0])

    swaps = pair.publisher.adopt_together(requests)

    assert swaps[0].snapshot_id == first.snapshot_id
    assert _values(pair) == NEW


def test_both_tables_go_back_by_one_commit_or_none(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    swaps = pair.publisher.adopt_together(requests)
    back = tuple(
        pair.revert_request(swap, requests[0].scope, f"r{number}")
        for number, swap in enumerate(swaps)
    )
    _around(monkeypatch, before=_lose_answer)
    with pytest.raises(OutcomeUnknown):
        pair.publisher.revert_together(back)
    assert _values(pair) == NEW

    done = pair.publisher.revert_together(back)

    assert _values(pair) == OLD
    assert [swap.snapshot_id for swap in done] == [pair.head(name) for name in TABLES]
    again = pair.publisher.revert_together(back)
    assert [swap.snapshot_id for swap in again] == [swap.snapshot_id for swap in done]


def test_a_live_writer_that_keeps_winning_is_said_so(
    pair: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _staged(pair)
    through = multi_table.commit_tables

    def commit_tables(catalog: Any, changes: Sequence[Any]) -> None:
        pair.append(row(20, DAYS[2], "live"), name=OTHER)
        through(catalog, changes)

    monkeypatch.setattr(multi_table, "commit_tables", commit_tables)
    with pytest.raises(TooBusy, match="other writers kept winning"):
        IcebergPublisher(pair.catalog, 0.3).adopt_together(requests)
    assert _values(pair)[0] == OLD[0]


def test_a_table_that_another_writer_commits_to_is_refused(pair: Kit) -> None:
    class Delegating:
        def swap_committer(self, table: str, scope: Scope | None) -> object:
            return None if table == TARGET else object()

    publisher: Any = IcebergPublisher(pair.catalog, writers=Delegating())  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="is written by Spark"):
        publisher.adopt_together(_staged(pair))
    assert _values(pair) == OLD
