"""Which versions can be gone back to: the newest, those of the last days, never fewer than two."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lakehouse_backfill.core.versions.retention import (
    count_expirations,
    decide_version_retention,
    expiration_rows,
    require_none_expired_since,
    require_version_kept,
)
from lakehouse_backfill.domain.contract import Contract, KeepVersions
from lakehouse_backfill.domain.publication import (
    Pointer,
    Publication,
    PublicationAction,
    apply_to_pointer,
    pointer_fault,
)
from lakehouse_backfill.errors import Blocked, PointerMoved
from tests.support.examples.plans import a_publication
from tests.support.fakes import context

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
BRIEF = KeepVersions(count=2, days=0)


def act(version: int, action: PublicationAction, day: int = 0) -> Publication:
    """An act of so many days ago, on a table that is followed."""
    token = f"{action[:3]}{version:02d}{day:07d}" + "-baseline" * (action == "baseline")
    return a_publication(
        version, action, product="p", token=token, table="t", at=NOW - timedelta(days=day)
    )


def newest_first(*rows: Publication) -> tuple[Publication, ...]:
    return tuple(reversed(rows))


STRAIGHT = newest_first(
    act(0, "baseline", 400), act(1, "publish", 300), act(2, "publish", 200), act(3, "publish", 100)
)
BACK = newest_first(
    act(0, "baseline", 400), act(1, "publish", 300), act(2, "publish", 200),
    act(1, "rollback", 100), act(3, "publish", 50),
)  # fmt: skip


@pytest.mark.req("U12")
@pytest.mark.parametrize(
    ("history", "keep", "kept"),
    [
        pytest.param(STRAIGHT, KeepVersions(), {0, 1, 2, 3}, id="fewer than the newest ten"),
        pytest.param(STRAIGHT, BRIEF, {2, 3}, id="the newest two"),
        pytest.param(STRAIGHT, KeepVersions(count=2, days=250), {1, 2, 3}, id="by age, of its end"),
        pytest.param(BACK, BRIEF, {1, 3}, id="what was gone back to counts as newer"),
        pytest.param(BACK[1:], BRIEF, {1, 2}, id="right after a rollback"),
        pytest.param(STRAIGHT[2:], BRIEF, {0, 1}, id="never fewer than the one before"),
        pytest.param((), BRIEF, set(), id="nothing was ever accepted"),
    ],
)
def test_the_newest_versions_are_kept(history, keep, kept) -> None:
    found = decide_version_retention(history, keep, None, NOW)
    assert set(found.kept) == kept
    assert set(found.expiring) == {row.version for row in history} - kept


@pytest.mark.req("U12")
def test_a_kept_version_keeps_every_act_since_and_its_own_content() -> None:
    found = decide_version_retention(BACK, BRIEF, None, NOW)
    needed = {row.token: [bool(found.tag_reason(f"{kind}{row.token[:12]}")) for kind in
                          ("lhb-before-", f"lhb-v{row.version}-")] for row in BACK}  # fmt: skip
    assert list(needed.values()) == [
        [True, True],  # publication of 3: what was there before, and 3 itself
        [False, True],  # rollback to 1: what it led to is version 1
        [False, False], [False, False], [False, False],
    ]  # fmt: skip


@pytest.mark.req("U12")
def test_nothing_is_let_go_while_an_act_is_pending() -> None:
    pending = act(4, "reserve")
    found = decide_version_retention(
        newest_first(*reversed(STRAIGHT), pending), BRIEF, pending, NOW
    )
    assert (set(found.kept), found.expiring) == ({0, 1, 2, 3}, {})
    assert found.tag_reason(f"lhb-v4-{pending.token[:12]}") == f"{pending.token} is under way"


@pytest.mark.req("U12")
def test_an_erasure_keeps_the_accepted_version_only_and_no_tag_of_a_table_that_is_followed():
    found = decide_version_retention(
        STRAIGHT, KeepVersions(), None, NOW, "erasure, by ana: request 4711"
    )
    assert set(found.kept) == {3}
    assert set(found.expiring.values()) == {"erasure, by ana: request 4711"}
    tags = [f"lhb-v3-{STRAIGHT[0].token[:12]}", f"lhb-before-{STRAIGHT[0].token[:12]}"]
    assert [found.tag_reason(tag) for tag in tags] == [None, None]
    pinned = decide_version_retention(
        STRAIGHT, KeepVersions(), None, NOW, "erasure", is_pinned=True
    )
    assert [bool(pinned.tag_reason(tag)) for tag in tags] == [True, False]


@pytest.mark.req("U12")
def test_who_let_a_version_go_and_why_is_said_to_those_who_want_it_back() -> None:
    first = decide_version_retention(STRAIGHT, BRIEF, None, NOW)
    rows = expiration_rows("p", first.expiring, NOW, "ben")
    history = (*reversed(rows), *STRAIGHT)
    with pytest.raises(Blocked) as refusal:
        require_version_kept(history, "p", 1)
    assert refusal.value.problem == (
        "p: version 1 cannot be gone back to: ben let it go on 2026-06-01, older than the newest 2 "
        "versions, and superseded for more than 0 days"
    )
    require_version_kept(history, "p", 2)
    again = decide_version_retention(history, BRIEF, None, NOW)
    assert (again.expiring, set(again.kept), again.expired) == ({}, {2, 3}, {0, 1})


@pytest.mark.req("U12")
def test_letting_versions_go_moves_nothing_but_is_counted() -> None:
    pointer = Pointer()
    for row in reversed(STRAIGHT):
        pointer = apply_to_pointer(pointer, row)
    rows = expiration_rows("p", {0: "old", 1: "old"}, NOW, "ben")
    moved = pointer
    for row in rows:
        moved = apply_to_pointer(moved, row)
    assert moved == pointer.model_copy(update={"expirations": 2})
    assert count_expirations(rows) == 2
    require_none_expired_since(moved, 2, "p")
    with pytest.raises(PointerMoved, match="versions have expired meanwhile"):
        require_none_expired_since(moved, 0, "p")
    all_rows = (*reversed(STRAIGHT), *rows)
    assert pointer_fault("p", all_rows, moved) is None
    assert pointer_fault("p", all_rows, pointer) == (
        "p: by its pointer 0 versions have expired, by its rows 2"
    )


@pytest.mark.parametrize("wrong", [{"count": 1}, {"days": -1}, {"count": 0}])
def test_a_contract_cannot_keep_fewer_than_the_accepted_version_and_the_one_before(wrong) -> None:
    with pytest.raises(ValueError, match="greater than or equal"):
        context.contract(keep_versions=wrong)


def test_a_contract_that_says_nothing_about_versions_is_stored_as_before() -> None:
    silent, spoken = context.contract(), context.contract(keep_versions={"count": 3, "days": 7})
    assert "keep_versions" not in silent.model_dump(mode="json")
    assert Contract.model_validate(spoken.model_dump(mode="json")) == spoken
