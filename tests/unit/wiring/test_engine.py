"""A JVM that is started at once for a run that was approved here, and what must not start one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session import jvm
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.wiring import engine

LAKE = {"name": "lake", "type": "sql", "uri": "sqlite:////c.db", "warehouse": "file:///lake"}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SparkSettings, bool]]:
    found: list[tuple[SparkSettings, bool]] = []

    def begin(settings: SparkSettings, *, may_archive: bool) -> None:
        found.append((settings, may_archive))

    monkeypatch.setattr(jvm, "begin_early", begin)
    return found


def wiring(folder: Path, **spark: str) -> Any:
    settings = {"spark.master": "local[2]"} | {f"spark.{name}": v for name, v in spark.items()}
    return SimpleNamespace(folder=folder, profile=Profile(catalog=LAKE, spark=settings))


def test_the_jvm_begins_with_the_settings_that_the_session_will_have(tmp_path, begun) -> None:
    own = wiring(tmp_path)
    engine.remember_rows(own, "bf-1", 10)
    engine._begin_early(own, "bf-1")
    rows, hides = 10, False
    expected = SparkSettings.for_session(own.profile, tmp_path, hides_values=hides, rows=rows)
    assert begun == [(expected, True)]


@pytest.mark.parametrize("case", ["unknown", "over", "many", "server", "warm", "odd", "wrong"])
def test_no_jvm_begins_early(case: str, tmp_path: Path, begun) -> None:
    own = wiring(tmp_path, **({"remote": "sc://host:1"} if case == "server" else {}))
    if case == "wrong":
        own = wiring(tmp_path, **{"wap.id": "w"})
    run = {"unknown": "bf-2", "odd": "../../etc/passwd"}.get(case, "bf-1")
    engine.remember_rows(own, "bf-1", 2_000_001 if case == "many" else 10)
    if case == "over":
        engine.end_run(own, "bf-1")
    if case == "warm":
        (tmp_path / ".lakehouse-backfill" / "session").mkdir()
    engine._begin_early(own, run)
    assert begun == []


def test_few_runs_are_remembered_and_a_read_only_project_remembers_none(tmp_path: Path) -> None:
    for number in range(60):
        engine.remember_rows(wiring(tmp_path), f"bf-{number}", number)
    assert len(list((tmp_path / ".lakehouse-backfill" / "expected-rows").iterdir())) == 50
    (tmp_path / "file").write_text("no folder")
    engine.remember_rows(wiring(tmp_path / "file"), "bf-1", 1)
