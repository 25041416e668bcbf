"""Files in S3 are asked for again more often than PyArrow does by default."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.io.pyarrow import _import_retry_strategy

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.rest.store_retries import PatientS3Retries
from lakehouse_backfill.domain.profile import Profile

NAMED = {"name": "lake", "uri": "sqlite:///${project}/c.db", "warehouse": "s3://b/w"}


def test_pyiceberg_makes_it_by_the_name_that_each_catalog_has(tmp_path: Path) -> None:
    properties = open_catalog(Profile(catalog=NAMED), tmp_path).properties
    made = _import_retry_strategy(properties["s3.retry-strategy-impl"])
    assert isinstance(made, PatientS3Retries)
    assert made.max_attempts == 8


def test_a_profile_may_name_another_one(tmp_path: Path) -> None:
    own = {**NAMED, "s3.retry-strategy-impl": "mine.Retries"}
    properties = open_catalog(Profile(catalog=own), tmp_path).properties
    assert properties["s3.retry-strategy-impl"] == "mine.Retries"
