"""Real processes that open the same new catalog at the same moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPEN = """
import sys
from pathlib import Path
from lakehouse_backfill.iceberg.catalog import open_catalog
from lakehouse_backfill.model.contract import Profile
profile = Profile(
    catalog={
        "name": "lake", "type": "sql", "uri": "sqlite:///${project}/catalog.db",
        "warehouse": "file://${project}/warehouse",
    }
)
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
print(open_catalog(profile, Path(sys.argv[1])).list_namespaces())
"""


def test_processes_that_open_a_new_catalog_at_once_all_get_it(tmp_path: Path) -> None:
    repository = Path(__file__).parents[2]
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        crowd = [
            subprocess.Popen(
                [sys.executable, "-c", OPEN, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(repository)},
            )
            for _ in range(3)
        ]
        assert all(one.stdout.readline() == "ready\n" for one in crowd)
        answers = [one.communicate("go\n", timeout=60) for one in crowd]
        assert [one.returncode for one in crowd] == [0, 0, 0], answers
        assert {out for out, _ in answers} == {"[]\n"}
