"""What is said of a cluster's master before Spark is started."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session import session
from lakehouse_backfill.adapters.spark.session.place import master_addresses
from lakehouse_backfill.adapters.spark.session.session import open_session
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError, EnvironmentDown

CATALOG = {
    "name": "lake", "type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "file:///lake",
}  # fmt: skip


@pytest.mark.req("X7")
@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("local[*]", ()),
        ("yarn", ()),
        ("spark://a:7077", (("a", 7077),)),
        ("spark://a:7077,b:7078", (("a", 7077), ("b", 7078))),
        ("k8s://https://kubernetes.default.svc", (("kubernetes.default.svc", 443),)),
        ("k8s://http://127.0.0.1:8001", (("127.0.0.1", 8001),)),
        ("k8s://api.example:6443", (("api.example", 6443),)),
        ("k8s://api.example", (("api.example", 443),)),
    ],
)
def test_a_master_names_its_hosts(master: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert master_addresses(master) == addresses


@pytest.mark.req("X7")
@pytest.mark.parametrize(
    "master", ["spark://", "spark://a", "spark://a:1,b", "k8s://", "k8s://a:b"]
)
def test_a_master_without_host_or_port_is_refused(master: str) -> None:
    with pytest.raises(ConfigError, match="which names no host and port") as refused:
        master_addresses(master)
    assert refused.value.fix.startswith("write spark://HOST:PORT")


@pytest.mark.req("X7")
@pytest.mark.parametrize("kind", ["spark://", "k8s://http://"])
def test_a_master_that_does_not_answer_is_said_so_before_spark_starts(
    kind: str, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        profile = Profile(catalog=CATALOG, spark={"spark.master": f"{kind}{address}"})
        begun = time.monotonic()
        with pytest.raises(EnvironmentDown, match=f"does not answer: {address}: ") as down:
            open_session(profile, tmp_path)
    assert time.monotonic() - begun < 5
    assert down.value.state == "nothing was computed; readers see what they saw before"
    assert down.value.fix == "start it, or correct spark.master in the profile"


@pytest.mark.req("X7")
def test_a_cluster_that_cannot_be_reached_is_said_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client of Java looks for it, by settings of its own."""
    said = "java.net.ConnectException: Call From here to there:8032 failed"

    def open_in(*_: object) -> Any:
        raise RuntimeError(f"calling JavaSparkContext.\n: {said}\n\tat a.b(C.java:1)\nCaused by: x")

    ended = SimpleNamespace(
        process=SimpleNamespace(wait=lambda _: 1, poll=lambda: 1),
        archive=SimpleNamespace(blame=lambda _: False),
    )
    monkeypatch.setattr(session, "begin_jvm", lambda *_, **__: ended)
    monkeypatch.setattr(session, "_open_in", open_in)
    profile = Profile(catalog=CATALOG, spark={"spark.master": "yarn"})
    with pytest.raises(EnvironmentDown) as down:
        open_session(profile, tmp_path)
    assert down.value.problem == f"Spark did not start on yarn: {said}"
    assert down.value.state == "nothing was computed; readers see what they saw before"
    assert down.value.fix.startswith("see whether the cluster of yarn is up")
