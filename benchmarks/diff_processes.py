"""Whole processes: our command, its imports, our differ and one DuckDB join with their memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks import diff_peers
from benchmarks.diff_peers import Setting
from benchmarks.tpch import KEY, TABLE, properties

PROGRAM = "from lakehouse_backfill.cli.main import run; run()"
IMPORTS = "import pyiceberg.catalog.sql, pyiceberg.table"
_PEER = (
    "import sys; from pathlib import Path; from benchmarks import diff_peers, tpch; "
    "lake = tpch.make(Path(sys.argv[1]), Path('none'), 0); "
    "setting = diff_peers.Setting(lake, sys.argv[2]); "
    "print(*getattr(diff_peers, sys.argv[3])(setting)())"
)


def measured(setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Time each process, in turns, and note its peak memory."""
    commands = {
        "imports": [sys.executable, "-c", IMPORTS],
        "diff --json": _diff(setting),
        "local diff": _peer(setting, "local"),
        "DuckDB join": _peer(setting, "duckdb_join"),
    }
    raw: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, command in commands.items():
            found = diff_peers.timed(command)
            _require(setting, name, found["output"])
            if number:
                raw.setdefault(f"{name}, process", []).append(found["seconds"][0])
                raw.setdefault(f"{name}, process MiB", []).append(found["peak_mib"])
    return raw


def lake_sift_counts(output: str) -> tuple[int, ...]:
    """Read lake-sift's counts."""
    found: Any = json.loads(output[output.index("{") :])
    summary = found.get("summary", found)
    return tuple(int(summary[name]) for name in ("added", "removed", "changed"))


def _diff(setting: Setting) -> list[str]:
    """Give our command on a project whose catalog is the lake's."""
    folder = _project(setting.lake.folder)
    old, new = (f"{TABLE}@{snapshot_id}" for snapshot_id in (setting.lake.a, setting.new))
    words = ["--project", str(folder), "--profile", "lake", "--json", "diff", old, new]
    limit = ["--engine", "local", "--by", "bench", "--key", ",".join(KEY)]
    return [sys.executable, "-c", PROGRAM, *words, *limit]


def _project(lake: Path) -> Path:
    folder = lake / "project"
    (folder / "catalog").mkdir(parents=True, exist_ok=True)
    profile = {"catalog": {"name": "lake", "type": "sql", **properties(lake)}}
    document = {
        "api_version": "lakehouse-backfill/v1", "default": "lake", "profiles": {"lake": profile}
    }  # fmt: skip
    (folder / "catalog" / "profiles.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def _peer(setting: Setting, name: str) -> list[str]:
    return [sys.executable, "-c", _PEER, str(setting.lake.folder), setting.variant, name]


def _require(setting: Setting, name: str, output: str) -> None:
    truth = setting.truth
    wanted = [truth.added, truth.removed, truth.changed]
    if name == "imports":
        return
    if name == "diff --json":
        summary = json.loads(output)["data"]["summary"]
        found = [summary[kind] for kind in ("added", "removed", "changed")]
    else:
        found = [int(word) for word in output.split()[-3:]]
    if found != wanted:
        raise SystemExit(f"{name} counts {found}, true is {wanted}")
