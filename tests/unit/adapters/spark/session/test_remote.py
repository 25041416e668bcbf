"""What is said of a Spark Connect server before it is asked anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.session import session
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import Blocked, ConfigError, EnvironmentDown


def settings(address: str, folder: Path) -> SparkSettings:
    catalog = {
        "name": "lake", "type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "file:///lake",
    }  # fmt: skip
    return SparkSettings.from_profile(
        Profile(catalog=catalog, spark={"spark.remote": address}), folder
    )


@pytest.mark.parametrize("address", ["local[2]", "server:15002", ""])
def test_an_address_that_names_no_server_starts_none(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no Spark Connect server") as refused:
        session.connect_to_server(settings(address, tmp_path))

    assert refused.value.fix.startswith("write sc://HOST:PORT")


def test_a_client_without_its_packages_says_what_installs_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)

    with pytest.raises(EnvironmentDown, match="the client of Spark Connect is not whole") as said:
        session.connect_to_server(settings("sc://nowhere:1", tmp_path))

    assert said.value.fix == "pip install 'lakehouse-backfill[connect]'"


@pytest.mark.req("E7")
def test_a_server_that_keeps_errors_and_plans_is_refused_for_restricted_columns() -> None:
    silent = {
        "spark.ui.enabled": "false", "spark.log.level": "off", "spark.master": "local[2]",
    }  # fmt: skip
    session.require_silent_server(lambda name, default: silent.get(name, default))

    local = {"spark.master": "local[2]"}
    with pytest.raises(Blocked, match="may quote values of restricted columns") as refused:
        session.require_silent_server(
            lambda name, default: {**local, "spark.eventLog.enabled": "true"}.get(name, default)
        )

    assert refused.value.fix == (
        "start the server with --conf spark.eventLog.enabled=false --conf spark.ui.enabled=false "
        "--conf spark.log.level=OFF"
    )


LOGGING = "-Dlog4j2.configurationFile=classpath:org/apache/spark/log4j2-defaults.properties"


@pytest.mark.req("E7")
def test_a_server_with_executors_of_its_own_is_asked_for_their_logs_too() -> None:
    silent = {
        "spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.master": "spark://host:7077",
        "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile=mine {LOGGING}",
    }  # fmt: skip
    with pytest.raises(Blocked) as refused:
        session.require_silent_server(lambda name, default: silent.get(name, default))
    assert refused.value.fix == (
        "start the server with --conf spark.executor.syncLogLevel.enabled=true"
    )
    silent |= {
        "spark.executor.syncLogLevel.enabled": "true",
        "spark.executor.extraJavaOptions": f"{LOGGING} -Dlog4j2.configurationFile=mine",
    }
    with pytest.raises(Blocked) as refused:
        session.require_silent_server(lambda name, default: silent.get(name, default))
    assert refused.value.fix.endswith(f"--conf spark.executor.extraJavaOptions={LOGGING}")
