"""By which location readers of Iceberg find the files of an old folder."""

from __future__ import annotations

import pytest

from lakehouse_backfill.adapters.sources.parquet_folder.places import location_of
from lakehouse_backfill.errors import ConfigError

pytestmark = pytest.mark.req("T10")


@pytest.mark.parametrize(
    ("address", "root", "location"),
    [
        # What Arrow makes of an address: the path in its store.
        ("s3://bucket/trips", "bucket/trips", "s3://bucket/trips"),
        ("S3://bucket/trips/", "bucket/trips", "s3://bucket/trips"),
        (
            "s3://key:secret@bucket/a%20b?region=eu-west-1&endpoint_override=http://store:9000",
            "bucket/a b", "s3://bucket/a b",
        ),
        ("gs://bucket/trips", "bucket/trips", "gs://bucket/trips"),
        ("file:///data/trips", "/data/trips", "file:///data/trips"),
        ("hdfs://names:8020/data/trips", "/data/trips", "hdfs://names:8020/data/trips"),
        ("hdfs://user@names:8020/data?user=me", "/data", "hdfs://names:8020/data"),
        ("hdfs:///data/trips", "/data/trips", "hdfs:///data/trips"),
        (
            "abfss://box@account.dfs.core.windows.net/trips", "box/trips",
            "abfss://box@account.dfs.core.windows.net/trips",
        ),
        (
            "abfss://box:secret@account.dfs.core.windows.net/", "box",
            "abfss://box@account.dfs.core.windows.net",
        ),
    ],
)  # fmt: skip
def test_the_location_says_which_store_it_is_and_no_secret(
    address: str, root: str, location: str
) -> None:
    assert location_of(address, root) == location


@pytest.mark.parametrize(
    "address", ["abfss://account.blob.core.windows.net/box/trips", "abfs://account@host/box/trips"]
)
def test_an_address_without_its_container_is_refused_before_anything_is_read(address: str) -> None:
    with pytest.raises(ConfigError, match="no address of a container") as refused:
        location_of(address, "box/trips")
    assert "CONTAINER@ACCOUNT" in refused.value.fix
