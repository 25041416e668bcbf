"""The image and the compose file, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.config.profiles import choose_profile, load_profiles

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
SPARK_SERVICES = ("spark-master", "spark-worker-1", "spark-worker-2")


def instructions() -> list[tuple[str, str]]:
    """Give the Dockerfile's instructions, continued lines joined, comments left out."""
    lines = (DOCKER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = text.replace("\\\n", " ").splitlines()
    pairs = (line.split(None, 1) for line in joined if line.strip())
    return [(pair[0], " ".join(pair[1].split())) for pair in pairs]


def values(name: str) -> list[str]:
    return [value for instruction, value in instructions() if instruction == name]


def copied() -> list[str]:
    """Give the paths that the image takes from the repository."""
    found: list[str] = []
    for value in values("COPY"):
        words = [word for word in shlex.split(value) if not word.startswith("--")]
        found += words[:-1]
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8")))


def make_recipe(target: str) -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    match = re.search(rf"^{target}:.*\n\t(.*)$", makefile, re.MULTILINE)
    return match.group(1)


def test_the_base_image_is_pinned_by_release() -> None:
    assert values("FROM") == ["python:3.12-slim-bookworm"]


def test_the_image_does_not_run_as_root() -> None:
    names = [instruction for instruction, _ in instructions()]
    assert values("USER") == ["backfill"]
    assert names.index("USER") < names.index("COPY") < names.index("CMD")
    assert "--uid 10001" in " ".join(values("RUN"))


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    paths = copied()
    assert {"lakehouse_backfill", "jobs", "catalog", "expectations", "tools"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert allowed == set(paths)


def test_the_image_is_set_up_and_started_as_make_does() -> None:
    setup = make_recipe("setup").replace("@$(PYTHON)", "python3")
    assert any(run.startswith(setup) for run in values("RUN"))
    assert make_recipe("demo").startswith("@.venv/bin/lakehouse-backfill demo ")
    assert values("CMD") == ['["lakehouse-backfill", "demo", "--dir", "/lake/demo"]']


def test_every_service_has_a_memory_limit_and_a_health_check(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"toolkit", *SPARK_SERVICES}
    assert all("mem_limit" in service for service in services.values())
    assert all("test" in services[name]["healthcheck"] for name in SPARK_SERVICES)
    waits = services["toolkit"]["depends_on"]
    assert waits == {name: {"condition": "service_healthy"} for name in SPARK_SERVICES}


def test_every_service_uses_one_image_and_the_shared_volume(compose: dict[str, Any]) -> None:
    services = compose["services"].values()
    assert {service["image"] for service in services} == {"lakehouse-backfill:0.1.0"}
    assert all("lake:/lake" in service["volumes"] for service in services)
    assert set(compose["volumes"]) == {"lake"}


def test_no_service_is_privileged_or_opens_a_port(compose: dict[str, Any]) -> None:
    odd = {"privileged", "ports", "network_mode", "pid", "cap_add", "user"}
    assert [name for name, service in compose["services"].items() if odd & set(service)] == []


def test_files_that_compose_mounts_exist(compose: dict[str, Any]) -> None:
    toolkit = compose["services"]["toolkit"]
    mounted = [text.split(":")[0] for text in toolkit["volumes"] if text.startswith("./")]
    assert mounted == ["./profiles.yaml"]
    assert (DOCKER / mounted[0]).is_file()
    assert (DOCKER / toolkit["build"]["context"] / toolkit["build"]["dockerfile"]).is_file()


def test_the_profile_sends_the_work_to_the_cluster(tmp_path, compose, monkeypatch) -> None:
    (tmp_path / "catalog").mkdir()
    shutil.copy(DOCKER / "profiles.yaml", tmp_path / "catalog" / "profiles.yaml")
    monkeypatch.delenv("LAKEHOUSE_BACKFILL_JARS", raising=False)
    settings = SparkSettings.from_profile(choose_profile(load_profiles(tmp_path)), tmp_path)
    assert not settings.is_local
    assert settings.options["spark.master"] == "spark://spark-master:7077"
    assert settings.options["spark.driver.host"] == compose["services"]["toolkit"]["hostname"]
    worker = compose["services"]["spark-worker-1"]["command"]
    assert worker[-1] == settings.options["spark.master"]
    assert worker[worker.index("--memory") + 1] == settings.options["spark.executor.memory"]
