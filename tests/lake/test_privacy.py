"""Values of restricted columns, and secrets, are nowhere outside the data files (E7)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.lakes.plain_bytes import plain_contents
from tests.support.spark import private_lives

#: What people wrote themselves: the profile's secret, and golden rows with values.
_OWN_FILES = ("catalog/profiles.yaml", "expectations/golden.csv")
#: Data files of the product, of its shadows and of its source.
_DATA_FOLDERS = ("warehouse/gold/people/data/", "warehouse/raw/people/data/")
_SHADOWS = "warehouse/lakehouse_backfill_shadow/"


def _is_data_file(name: str) -> bool:
    return name.startswith(_DATA_FOLDERS) or (name.startswith(_SHADOWS) and "/data/" in name)


#: The life of a product, as acts of `private_lives`, with an index page and an event log.
LIFE = ("begin", "reject", "look", "live", "publish_in_other_ways", "fail", "keep_warm")


@pytest.mark.long
@pytest.mark.req("E7")
@pytest.mark.timeout(900)
def test_a_whole_life_leaves_no_restricted_value_or_secret_outside_the_data_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.private_lives", str(tmp_path), *LIFE],
        capture_output=True, text=True, check=False,
        env={
            **os.environ, "LAKEHOUSE_BACKFILL_SPARK_LOG": str(tmp_path / "spark.log"),
            "TMPDIR": str(tmp_path / "tmp"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert private_lives.MARK not in done.stdout + done.stderr
    _wait_for_end_of_spark(tmp_path / "local")
    names = {
        path: path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    searched = [path for path, name in names.items() if name not in _OWN_FILES]
    mark, planted = private_lives.MARK.encode(), set()
    found = []
    for path in searched:
        for content in plain_contents(path):
            if _is_data_file(names[path]):
                planted |= {content[at : at + 11] for at in _places(content, mark)}
            elif mark in content:
                at = content.index(mark)
                found.append((names[path], content[max(0, at - 80) : at + 40]))
    assert not found
    # The search reads what it claims to: the data files hold the values.
    assert len(planted) >= 1_000
    kinds = {path.suffix for path in searched}
    assert {".avro", ".parquet", ".json", ".html", ".txt", ".log", ".db"} <= kinds
    assert any(name.startswith("events/") for name in names.values())


def _wait_for_end_of_spark(scratch: Path) -> None:
    """Wait until the JVM has deleted its scratch files, which it does after the process ended."""
    for _ in range(300):
        if not list(scratch.glob("blockmgr-*")):
            return
        time.sleep(0.2)


def _places(content: bytes, mark: bytes) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(mark), content)]
