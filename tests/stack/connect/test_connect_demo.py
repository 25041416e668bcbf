"""The demonstration's restatement is computed on a Spark Connect server, against its oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark import arrivals


@pytest.mark.req("X7")
@pytest.mark.usefixtures("spark")
def test_the_demos_chunks_have_the_checksums_of_its_oracle(remote: str, lake_folder: Path) -> None:
    """Also of a local session: tests/setup/test_demo.py compares what it publishes row by row."""
    wrong, right = arrivals.wrong_rows(), arrivals.right_rows()
    project, run = arrivals.stage_arrivals(lake_folder, {"spark.remote": remote})
    assert arrivals.found_checksums(project, run) == arrivals.expected_checksums()
    assert arrivals.found_rows(project) == wrong != right
