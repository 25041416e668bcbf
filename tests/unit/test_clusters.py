"""Templates for clusters parse, and hold the settings that the toolkit writes and asks for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse_backfill.adapters.spark.session import session, settings
from lakehouse_backfill.adapters.spark.session.settings import ICEBERG_EXTENSIONS, SparkSettings
from lakehouse_backfill.config.profiles import choose_profile, load_profiles
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import Blocked

pytestmark = pytest.mark.req("X7")

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "docker" / "clusters"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: The rest of the operator's settings say where executors come from.
OF_THE_CLUSTER = ("spark.kubernetes.", "spark.dynamicAllocation.")


def server_conf() -> dict[str, str]:
    """Read the file of properties as Spark does: a name, blanks, a value."""
    lines = (CLUSTERS / "spark-connect.conf").read_text("utf-8").splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def operator() -> dict[str, Any]:
    return dict(yaml.safe_load((CLUSTERS / "spark-application.yaml").read_text("utf-8")))


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, Profile]:
    (tmp_path / "catalog").mkdir()
    text = (CLUSTERS / "profiles.yaml").read_text("utf-8")
    (tmp_path / "catalog" / "profiles.yaml").write_text(text, encoding="utf-8")
    found = load_profiles(tmp_path)
    return {name: choose_profile(found, name) for name in found.profiles}


def test_a_cluster_is_a_matter_of_the_profile_alone(
    profiles: dict[str, Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but what says where is computed is the same on each, and as on one machine."""
    monkeypatch.setattr(settings, "find_local_jars", lambda project: ())
    made = {
        name: SparkSettings.from_profile(profile, tmp_path) for name, profile in profiles.items()
    }
    masters = {name: one.options["spark.master"] for name, one in made.items()}
    assert masters == {
        "standalone": "spark://spark-master:7077", "yarn": "yarn",
        "kubernetes": "k8s://https://kubernetes.default.svc", "connect": "local[*]",
    }  # fmt: skip
    assert made["connect"].remote == "sc://spark-connect:15002"
    assert not any(one.is_local for one in made.values())
    local = profiles["yarn"].model_copy(update={"spark": {}})
    alone = SparkSettings.from_profile(local, tmp_path).options
    for name, one in made.items():
        shared = {key: text for key, text in one.options.items() if key not in profiles[name].spark}
        differing = {key for key, text in shared.items() if alone.get(key) != text}
        differing -= settings._YARN_DEFAULTS.keys()
        assert differing == set(), name
        wanted = settings._SILENT_EXECUTORS if one.remote is None else {}
        assert wanted.items() <= one.without_values().options.items()


def test_a_server_of_the_template_has_what_the_toolkit_asks_of_one(
    profiles: dict[str, Profile], tmp_path: Path
) -> None:
    conf = server_conf()
    session.require_silent_server(conf.get)
    assert conf["spark.sql.extensions"] == ICEBERG_EXTENSIONS
    own = SparkSettings.from_profile(profiles["standalone"], tmp_path).without_values().options
    extra = "spark.executor.extraJavaOptions"
    for key in conf.keys() - {"spark.eventLog.enabled", "spark.scheduler.mode", extra}:
        assert conf[key] == own[key], key
    assert conf[extra] in own[extra]
    for key in ("spark.log.level", "spark.executor.syncLogLevel.enabled", "spark.ui.enabled"):
        # Each of them is asked for: a server without one is refused.
        loud = {name: text for name, text in conf.items() if name != key}
        with pytest.raises(Blocked, match="writes errors of tasks"):
            session.require_silent_server(lambda name, default, c=loud: c.get(name, default))


def test_the_operator_starts_the_same_server() -> None:
    found = operator()
    assert (found["apiVersion"], found["kind"]) == ("spark.apache.org/v1", "SparkApplication")
    assert found["spec"]["mainClass"] == SERVER
    conf = found["spec"]["sparkConf"]
    assert all(type(text) is str for text in conf.values()), "the operator takes texts only"
    mine = {key: text for key, text in conf.items() if not key.startswith(OF_THE_CLUSTER)}
    assert mine == server_conf()
    assert found["spec"]["runtimeVersions"]["sparkVersion"].startswith("4.1.")


def test_the_script_hands_its_server_to_spark_submit(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    done = subprocess.run(
        [str(CLUSTERS / "spark-submit.sh"), "--conf", "spark.yarn.queue=a b"],
        capture_output=True, text=True, check=True,
        env={**os.environ, "SPARK_HOME": str(tmp_path), "MASTER": "yarn", "PACKAGES": "g:a:1"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "--master", "yarn", "--deploy-mode", "client",
        "--properties-file", str(CLUSTERS / "spark-connect.conf"), "--packages", "g:a:1",
        "--class", SERVER, "--conf", "spark.yarn.queue=a b", "spark-internal",
    ]  # fmt: skip
