"""Rules that are held against a session of this process, held against one of a server as well.

They are those that rest on what Spark does when: it loads a table later there, and answers with
errors of its own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.errors import ConfigError, WriteForbidden
from tests.lake.conftest import (
    daily,
    isolation,
    lake,
)
from tests.lake.test_fencing import (
    test_a_writer_goes_on_writing_to_the_table_that_it_opened,
    test_no_moment_between_the_look_and_the_commit_lets_an_overtaken_write_through,
)
from tests.lake.test_firewall import (
    outside,
    run,
    test_a_transform_reaches_a_declared_sink_only_as_the_policy_says,
    test_a_worker_reaches_no_sink,
    test_an_honest_transform_runs,
    test_each_outside_effect_is_stopped_with_sink_file_and_line,
)
from tests.lake.test_guard import (
    ATTEMPTS,
    guarded,
)
from tests.lake.test_rewrite_way import (
    days,
    kit,
    test_an_append_elsewhere_between_check_and_commit_survives,
    test_an_append_to_the_partition_between_check_and_commit_is_a_conflict,
    test_forth_and_back_is_one_snapshot_each_and_nothing_else_changes,
    test_one_that_was_cut_off_after_its_snapshot_is_proven_and_tagged_by_who_finds_it,
    test_what_is_not_the_candidate_is_neither_accepted_nor_given_back,
)
from tests.lake.test_secret_rows import (
    test_a_short_secret_inside_a_text_is_found_unless_it_is_a_word_or_a_number,
    test_texts_that_only_resemble_a_secret_are_staged,
    test_the_value_of_a_secret_reaches_no_rows_unnoticed,
)
from tests.lake.test_staging import test_an_expired_pin_is_not_found
from tests.support.spark.lake import copy_job
from tests.unit.adapters.spark.guard.test_unaudited_calls import CONNECT_EFFECTS, require_stopped

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.support.spark.lake import Lake

__all__ = [
    "daily",
    "days",
    "guarded",
    "isolation",
    "kit",
    "lake",
    "outside",
    "test_a_short_secret_inside_a_text_is_found_unless_it_is_a_word_or_a_number",
    "test_a_transform_reaches_a_declared_sink_only_as_the_policy_says",
    "test_a_worker_reaches_no_sink",
    "test_a_writer_goes_on_writing_to_the_table_that_it_opened",
    "test_an_append_elsewhere_between_check_and_commit_survives",
    "test_an_append_to_the_partition_between_check_and_commit_is_a_conflict",
    "test_an_expired_pin_is_not_found",
    "test_an_honest_transform_runs",
    "test_each_outside_effect_is_stopped_with_sink_file_and_line",
    "test_forth_and_back_is_one_snapshot_each_and_nothing_else_changes",
    "test_no_moment_between_the_look_and_the_commit_lets_an_overtaken_write_through",
    "test_one_that_was_cut_off_after_its_snapshot_is_proven_and_tagged_by_who_finds_it",
    "test_texts_that_only_resemble_a_secret_are_staged",
    "test_the_value_of_a_secret_reaches_no_rows_unnoticed",
    "test_what_is_not_the_candidate_is_neither_accepted_nor_given_back",
]


def test_a_job_gets_no_other_session(lake: Lake) -> None:
    other = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"
    with pytest.raises(ConfigError, match="CONNECT_URL_NOT_SET"):
        run(lake, copy_job(other, "return src"))


@pytest.mark.req("X1", "T6", "E1")
def test_no_way_to_write_is_open_to_a_job(guarded: tuple[Lake, DataFrame, str]) -> None:
    lake, frame, name = guarded
    before = (lake.head("live"), lake.rows("live"))
    refused = set()
    for what, attempt in ATTEMPTS.items():
        # A client knows no other session; all else is ours to refuse.
        expected = AttributeError if "another session" in what else WriteForbidden
        with write_guard.forbid_job_writes(), contextlib.suppress(expected):
            attempt(frame, name)
            continue
        refused.add(what)
    assert refused == ATTEMPTS.keys()
    assert (lake.head("live"), lake.rows("live")) == before


@pytest.mark.req("T6", "E1")
@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_a_job_opens_no_channel_to_a_server_of_its_own(tmp_path: Path, in_worker: bool) -> None:
    require_stopped(CONNECT_EFFECTS, tmp_path, in_worker=in_worker)
