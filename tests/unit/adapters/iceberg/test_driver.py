"""What is missing for a catalog is named by the extra that brings it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError, EnvironmentDown


@pytest.mark.parametrize("is_in_profile", [True, False], ids=["profile", "environment"])
def test_a_missing_driver_of_postgresql_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_in_profile: bool
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    uri = {"uri": "postgresql+psycopg2://host/lake"}
    if not is_in_profile:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri.pop("uri"))
    with pytest.raises(EnvironmentDown, match="psycopg2") as missing:
        open_catalog(Profile(catalog={"name": "lake", "type": "sql", **uri}), tmp_path)
    assert missing.value.fix == "pip install 'lakehouse-backfill[postgres]'"


def test_a_uri_of_the_environment_is_checked_as_one_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:///relative.db")
    with pytest.raises(ConfigError, match="relative"):
        open_catalog(Profile(catalog={"name": "lake", "type": "sql"}), tmp_path)
