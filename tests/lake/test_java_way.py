"""The rules of the lake's ports hold for commits by Iceberg's Java API, in formats 2 and 3.

The tests are those of PyIceberg's own way, each called with a kit whose commits Java makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.iceberg.manifests.scope_files import ScopeFiles
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.errors import TargetChanged
from tests.contract import test_adopt, test_deletes, test_lake_ports, test_revert
from tests.support.lakes.tables import DAY, DAYS, TARGET, row
from tests.support.spark.java import JavaKit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = Scope(field=DAY, partitions=DAYS[1:2])
#: They look into PyIceberg's own commit, or test that it refuses format 3.
_PYICEBERG_ONLY = {
    "test_a_commit_whose_answer_was_lost_is_found_and_not_repeated",
    "test_an_outcome_that_nobody_can_tell_is_said_so_and_nothing_is_deleted",
    "test_format_v3_is_refused",
    "test_manifests_without_live_files_are_dropped",
    "test_restored_files_keep_their_sequence_numbers",
    "test_what_doctor_tries_out_leaves_nothing_behind",
}
#: They end before a writer is asked for a commit, in code that knows none: tests/contract has them.
_BEFORE_ANY_WRITER = {
    "test_a_chunk_that_is_missing_is_refused",
    "test_a_file_names_the_delete_files_that_apply_to_it",
    "test_a_file_to_adopt_of_another_size_is_refused",
    "test_a_file_to_adopt_that_is_missing_is_refused",
    "test_a_first_publication_conflicts_with_rows_that_came_meanwhile",
    "test_a_live_append_to_the_partition_is_a_conflict_that_names_it",
    "test_a_shadow_of_another_base_is_refused",
    "test_a_spec_that_changed_while_the_run_was_open_is_refused",
    "test_a_table_that_is_no_shadow_is_refused",
    "test_a_table_that_was_made_again_is_refused",
    "test_a_tag_of_the_publication_that_is_taken_is_a_conflict",
    "test_a_token_that_only_a_branch_holds_has_not_landed_whatever_expired",
    "test_deletes_of_the_run_itself_are_refused",
    "test_history_that_expired_in_between_is_refused_only_when_the_partition_changed",
    "test_rows_deleted_merge_on_read_since_the_base_are_a_conflict",
    "test_rows_that_move_between_partitions_in_a_replace_are_a_conflict",
    "test_what_came_since_is_told_commit_by_commit",
}
#: Of the tests of other ports, those that write through the two that commit.
_WRITING = ("_pin", "shadow", "crash", "catalog_that_keeps", "places", "chunk_ledger")
#: In format 3: those that need no PyIceberg as a live writer of another shape.
IN_FORMAT_3 = {
    "test_a_live_append_to_another_partition_survives",
    "test_a_live_delete_of_another_partition_survives",
    "test_runs_of_other_partitions_both_land",
    "test_an_append_that_was_compacted_since_is_a_conflict",
    "test_an_empty_partition_removes_the_old_files",
    "test_publication_tags_property_and_summary_are_in_the_swaps_own_commit",
    "test_adopting_twice_changes_nothing",
    "test_a_shadow_that_changed_other_partitions_is_refused",
    "test_a_compaction_since_is_no_conflict",
    "test_later_live_commits_elsewhere_survive",
    "test_publish_roll_back_publish_again_is_legal",
    "test_a_pin_of_another_snapshot_and_of_none_is_refused",
    "test_an_open_shadow_is_given_back_and_another_runs_is_refused",
    "test_a_retired_shadow_is_gone_and_its_files_stay",
}
Rule = Callable[[JavaKit], None]


def rules() -> dict[str, Rule]:
    """Give the rules that take one kit, by name."""
    found: dict[str, Rule] = {}
    not_here = _PYICEBERG_ONLY | _BEFORE_ANY_WRITER
    for module in (test_adopt, test_revert, test_deletes, test_lake_ports):
        for name, member in vars(module).items():
            if not name.startswith("test_") or name in not_here:
                continue
            is_writing = module is not test_lake_ports or any(word in name for word in _WRITING)
            takes = list(inspect.signature(member).parameters)
            if is_writing and takes in (["kit"], ["days"]):
                found[name] = member
    return found


RULES = rules()


@pytest.fixture
def kit(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[JavaKit]:
    version = getattr(request, "param", 3)
    with JavaKit(tmp_path, spark, version).watched() as made:
        yield made


@pytest.fixture
def days(kit: JavaKit) -> JavaKit:
    """A table by day with three days of one row each."""
    kit.create_days(DAYS)
    return kit


@pytest.mark.long
@pytest.mark.req("U1", "U11", "U12")
@pytest.mark.parametrize("kit", [2], indirect=True)
@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_holds_in_format_2(
    name: str, kit: JavaKit, request: pytest.FixtureRequest
) -> None:
    hold(name, kit, request)


@pytest.mark.long
@pytest.mark.req("U1", "U11", "U12")
@pytest.mark.parametrize("kit", [3], indirect=True)
@pytest.mark.parametrize("name", sorted(IN_FORMAT_3))
def test_the_rules_hold_in_format_3(
    name: str, kit: JavaKit, request: pytest.FixtureRequest
) -> None:
    hold(name, kit, request)


def hold(name: str, kit: JavaKit, request: pytest.FixtureRequest) -> None:
    rule: Any = RULES[name]
    if rule.__module__.endswith("test_deletes"):
        kit.create_days(each=2)
    wants_days = "days" in inspect.signature(rule).parameters
    rule(request.getfixturevalue("days") if wants_days else kit)


def content(kit: JavaKit, snapshot_id: int | None) -> ScopeFiles:
    table = kit.live.load_table(TARGET)
    state = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    return ScopedReader(table, SECOND, ManifestCache()).scope_files(state)


@pytest.mark.req("U11")
def test_deletion_vectors_of_files_that_go_go_with_them(days: JavaKit) -> None:
    days.append(row(7, DAYS[1]), row(8, DAYS[2]))
    days.append(row(9, DAYS[1]))
    days.sql("INSERT INTO {t} SELECT id + 20, d, ts, region, v FROM {t}")
    hidden = days.hide(7, 21, 22)
    assert len(content(days, hidden).effective_deletes) == 2
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})

    swap = days.publisher.adopt(request)

    after = content(days, swap.snapshot_id)
    assert (len(after.data), after.deletes) == (1, {})
    seen = days.sql("SELECT id FROM {t} ORDER BY id").collect()
    assert [each.id for each in seen] == [0, 2, 8, 11, 20, 28]
    assert [each[0] for each in days.rows()] == sorted([0, 2, 8, 11, 20, 28], key=str)


@pytest.mark.req("U11")
def test_a_row_deleted_by_a_vector_since_the_base_is_a_conflict_that_names_it(
    days: JavaKit,
) -> None:
    days.append(row(7, DAYS[1]), row(8, DAYS[1]))
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    culprit = days.hide(7)

    with pytest.raises(TargetChanged, match=rf"snapshot {culprit} \(.* by spark .*2013-02-02"):
        days.publisher.adopt(request)


@pytest.mark.req("U12")
def test_partitions_with_vectors_before_the_publication_have_to_be_rewritten(days: JavaKit) -> None:
    days.append(row(7, DAYS[1]), row(8, DAYS[1]))
    days.hide(7)
    swap = days.publisher.adopt(days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]}))

    back = days.revert_request(swap, SECOND)

    (found,) = days.publisher.rewrites(TARGET, DAY, back.restores)
    assert found.partitions == SECOND.partitions
    assert "delete files hid rows" in found.because


@pytest.mark.req("U11")
def test_the_producer_keeps_what_it_wrote_when_another_writer_was_faster(days: JavaKit) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(
        lambda: days.append(row(20, DAYS[2], "live")), lambda: days.append(row(21, DAYS[0], "live"))
    )

    swap = days.publisher.adopt(request)

    assert swap.attempts == 3
    assert [(each[0], each[3]) for each in days.rows()] == [
        (0, "old"), (11, "new"), (2, "old"), (20, "live"), (21, "live"),
    ]  # fmt: skip


@pytest.mark.req("U11")
def test_a_live_append_between_check_and_commit_is_a_conflict_that_names_it(days: JavaKit) -> None:
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(lambda: days.append(row(20, DAYS[1], "live")))

    with pytest.raises(TargetChanged, match=r"append by spark .* changed 2013-02-02"):
        days.publisher.adopt(request)

    assert days.rows()[-1] == (20, DAYS[1], "EU", "live")


@pytest.mark.req("U12")
@pytest.mark.parametrize("kit", [2, 3], indirect=True)
def test_files_that_come_back_keep_their_data_sequence_number(days: JavaKit) -> None:
    before = content(days, days.head()).data
    swap = days.publisher.adopt(days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]}))

    back = days.publisher.revert(days.revert_request(swap, SECOND))

    after = content(days, back.snapshot_id).data
    numbers = {path: entry.sequence_number for path, entry in before.items()}
    assert {path: entry.sequence_number for path, entry in after.items()} == numbers
    assert [each[3] for each in days.rows()] == ["old", "old", "old"]


@pytest.mark.req("X1")
def test_a_clone_lists_no_metadata_file_of_its_target(days: JavaKit) -> None:
    days.append(row(7, DAYS[1]))
    before = days.live.load_table(TARGET).metadata
    logged = {entry.metadata_file for entry in before.metadata_log}
    days.stage(DAY, {DAYS[0]: [], DAYS[1]: [], DAYS[2]: [row(11, DAYS[2])]})

    shadow = days.live.load_table("shadow.r1").metadata
    assert logged.isdisjoint(entry.metadata_file for entry in shadow.metadata_log)
    assert shadow.next_row_id >= before.next_row_id
    assert shadow.snapshots[0].snapshot_id == before.current_snapshot_id
