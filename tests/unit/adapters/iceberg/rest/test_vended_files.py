"""Credentials that a catalog hands out: when they are renewed."""

from __future__ import annotations

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_backfill.adapters.iceberg.rest.vended_files import (
    RenewedFiles,
    handed_out,
    plain_files,
)


class Vendor:
    """A catalog whose credentials last so long, on a clock that tests move; None: it is away."""

    now = 1000.0

    def __init__(self, lasts_s: float | None = 3600.0, *, is_said: bool = True) -> None:
        self.lasts_s, self.is_said, self.given = lasts_s, is_said, 0

    def load(self) -> FileIO:
        if self.lasts_s is None:
            raise ConnectionError("away")
        self.given += 1
        properties = {"s3.access-key-id": f"key{self.given}"}
        if self.is_said:
            ends = str(int((self.now + self.lasts_s) * 1000))
            properties["s3.session-token-expires-at-ms"] = ends
        return PyArrowFileIO(properties)

    def files(self) -> RenewedFiles:
        return RenewedFiles(self.load(), self.load, lambda: self.now)


def key_of(files: RenewedFiles, vendor: Vendor, later_s: float = 0.0) -> str:
    """Give the key with which a file is opened so much later."""
    vendor.now += later_s
    files.new_input("/t/metadata/v1.json")
    assert files.properties == plain_files(files).properties
    return str(files.properties["s3.access-key-id"])


@pytest.mark.req("X12")
def test_credentials_are_renewed_before_they_end() -> None:
    vendor = Vendor(3600)
    files = vendor.files()
    keys = [key_of(files, vendor, later) for later in (0, 3299, 2, 3299, 0.5, 1)]
    assert keys == ["key1", "key1", "key2", "key2", "key2", "key3"]
    short = Vendor(10)
    files = short.files()
    assert [key_of(files, short, later) for later in (4, 2, 4, 2)] == [
        "key1", "key2", "key2", "key3",
    ]  # fmt: skip


@pytest.mark.req("X12")
def test_those_that_do_not_say_when_they_end_are_renewed_too() -> None:
    vendor = Vendor(is_said=False)
    files = vendor.files()
    assert [key_of(files, vendor, later) for later in (299, 2)] == ["key1", "key2"]
    assert handed_out(files.properties, {}) == {"s3.access-key-id": "key2"}
    assert handed_out(files.properties, {"s3.access-key-id": "key2"}) == {}
    strange = PyArrowFileIO({"s3.session-token-expires-at-ms": "soon"})
    assert key_of(RenewedFiles(strange, vendor.load, lambda: vendor.now), vendor, 301) == "key3"


@pytest.mark.req("X12", "U10")
def test_a_catalog_that_is_away_matters_only_when_the_old_ones_have_ended() -> None:
    vendor = Vendor(600)
    files = vendor.files()
    vendor.lasts_s = None
    assert key_of(files, vendor, 500) == "key1"
    for _ in range(2):
        with pytest.raises(ConnectionError):
            key_of(files, vendor, 101)
    vendor.lasts_s = 600
    assert key_of(files, vendor, 2) == "key2"


def test_a_server_whose_clock_is_behind_is_not_asked_for_each_file() -> None:
    vendor = Vendor(-60)
    files = vendor.files()
    assert [key_of(files, vendor, later) for later in (0.5, 0.4, 0.2, 0.1)] == [
        "key1", "key1", "key2", "key2",
    ]  # fmt: skip
