"""The rules of the lake's ports hold for swaps by rows, in formats 2 and 3.

The tests are those of PyIceberg's own way. House rules keep the adapter to Spark's public API
(`tools/check_house.py`), so that a session of this process stands for one through Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, Unsupported
from tests.lake.test_java_way import DAYS, IN_FORMAT_3, RULES, hold
from tests.support.lakes.tables import DAY, TARGET, row
from tests.support.spark.rewrite import RewriteKit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = Scope(field=DAY, partitions=DAYS[1:2])
#: What a swap by rows does in another way, and how.
OTHERWISE = {
    # Spark commits the snapshot; the tags follow. Killed in between below.
    "test_publication_tags_property_and_summary_are_in_the_swaps_own_commit",
    # Iceberg itself takes a commit elsewhere for no conflict, and needs no attempt of ours.
    "test_a_commit_on_another_branch_in_between_is_a_race_that_is_run_again",
    "test_live_commits_elsewhere_between_check_and_commit_only_cost_attempts",
    # All files of the partitions are new ones, after a rollback too.
    "test_unchanged_files_are_left_alone",
    "test_a_publication_that_was_rolled_back_is_no_conflict_after_a_compaction",
}
TAGS = {"lhb-before-r1", "lhb-after-r1"}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def kit(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession
) -> Iterator[RewriteKit]:
    with RewriteKit(tmp_path, spark, getattr(request, "param", 3)).watched() as made:
        yield made


@pytest.fixture
def days(kit: RewriteKit) -> RewriteKit:
    """A table by day with three days of one row each."""
    kit.create_days(DAYS)
    return kit


@pytest.mark.long
@pytest.mark.req("U1", "U11", "U12")
@pytest.mark.parametrize("kit", [3], indirect=True)
@pytest.mark.parametrize("name", sorted(IN_FORMAT_3 - OTHERWISE))
def test_the_rules_hold_in_format_3(
    name: str, kit: RewriteKit, request: pytest.FixtureRequest
) -> None:
    hold(name, kit, request)


@pytest.mark.long
@pytest.mark.req("U1", "U11", "U12")
@pytest.mark.parametrize("kit", [2], indirect=True)
@pytest.mark.parametrize("name", sorted(RULES.keys() - OTHERWISE))
def test_every_rule_holds_in_format_2(
    name: str, kit: RewriteKit, request: pytest.FixtureRequest
) -> None:
    hold(name, kit, request)


@pytest.mark.req("U1", "U12")
def test_forth_and_back_is_one_snapshot_each_and_nothing_else_changes(days: RewriteKit) -> None:
    days.append(row(7, DAYS[1]), row(8, DAYS[1]), row(9, DAYS[2]), row(10, DAYS[2]))
    days.hide(9)
    before = days.rows()
    beside = {file.path for file in days.tables.files(TARGET, days.head(), DAY)}

    swap = days.publisher.adopt(days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]}))
    after = days.rows()
    days.append(row(20, DAYS[0], "live"))
    back = days.revert_request(swap, SECOND)
    undone = days.publisher.revert(back)

    assert [(each[0], each[3]) for each in after] == [
        (0, "old"), (10, "old"), (11, "new"), (2, "old"),
    ]  # fmt: skip
    assert days.rows() == sorted([*before, (20, DAYS[0], "EU", "live")], key=str)
    snapshots = days.live.load_table(TARGET).metadata.snapshots
    assert [one.snapshot_id for one in snapshots[-3:]][::2] == [
        swap.snapshot_id, undone.snapshot_id,
    ]  # fmt: skip
    left = {file.path for file in days.tables.files(TARGET, days.head(), DAY)}
    assert {path for path in beside if f"d={DAYS[1]}" not in path} <= left


@pytest.mark.req("U11")
def test_an_append_elsewhere_between_check_and_commit_survives(days: RewriteKit) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(lambda: days.append(row(20, DAYS[2], "live")))

    swap = days.publisher.adopt(request)

    assert [(each[0], each[3]) for each in days.rows()] == [
        (0, "old"), (11, "new"), (2, "old"), (20, "live"),
    ]  # fmt: skip
    tags = days.tables.describe(TARGET).refs
    assert tags["lhb-after-r1"] == swap.snapshot_id
    assert tags["lhb-before-r1"] == swap.before_snapshot_id


@pytest.mark.req("U11")
def test_an_append_to_the_partition_between_check_and_commit_is_a_conflict(
    days: RewriteKit,
) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(lambda: days.append(row(20, DAYS[1], "live")))

    with pytest.raises(TargetChanged, match=r"append by spark .* changed 2013-02-02"):
        days.publisher.adopt(request)

    assert days.rows()[-1] == (20, DAYS[1], "EU", "live")


@pytest.mark.in_turn
@pytest.mark.req("T3", "U10")
@pytest.mark.parametrize(
    ("point", "tags"),
    [("Publisher.swap:committed", 0), ("Pins.tag:committing", 0), ("Pins.tag:committed", 1)],
)
@pytest.mark.parametrize("verb", ["adopt", "find"])
def test_one_that_was_cut_off_after_its_snapshot_is_proven_and_tagged_by_who_finds_it(
    days: RewriteKit, point: str, tags: int, verb: str
) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})

    def kill(reached: str) -> None:
        if reached == point:
            raise Killed

    fault_points.install_hook(kill)
    with pytest.raises(Killed):
        days.publisher.adopt(request)
    fault_points.install_hook(None)
    head = days.head()
    assert len(TAGS & days.tables.describe(TARGET).refs.keys()) == tags

    if verb == "adopt":
        found = days.publisher.adopt(request)
    else:
        found = days.publisher.find(TARGET, request.token)

    assert found is not None
    assert (found.snapshot_id, days.head()) == (head, head)
    assert days.tables.describe(TARGET).refs.keys() >= TAGS


@pytest.mark.req("U1")
def test_what_is_not_the_candidate_is_neither_accepted_nor_given_back(days: RewriteKit) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.publisher.adopt(request)
    for tag in sorted(TAGS):
        days.pins.unpin(TARGET, tag)
    # As many rows, with another value: only a checksum tells.
    days.write_chunk(request.shadow, DAY, DAYS[1], [row(11, DAYS[1], "other")], "c1")
    other = days.head(request.shadow)
    done = days.live.load_table(TARGET).metadata.snapshot_by_id(days.head())
    text = done.summary["lakehouse-backfill.rewriting"]
    contents = days.rewriting(text.replace(str(request.shadow_snapshot_id), str(other)))

    with pytest.raises(OutcomeUnknown, match=r"holds 1 rows .* the candidate 1"):
        days.rows_way.require_equal(TARGET, days.head(), contents)


@pytest.mark.req("U6")
def test_what_needs_a_commit_of_another_kind_is_refused(days: RewriteKit) -> None:
    request = days.stage(DAY, {"2013-02-04": [row(11, "2013-02-04", "new")]})
    head = days.head()

    with pytest.raises(Unsupported, match="cannot commit an append"):
        days.publisher.adopt(request.model_copy(update={"operation": "append"}))
    with pytest.raises(Unsupported, match="cannot be refused for commits of others"):
        days.publisher.adopt(request.model_copy(update={"is_frozen": True}))

    assert days.head() == head
