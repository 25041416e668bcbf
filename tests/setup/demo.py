"""A finished demo, and the program in its folder."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog

from tests.setup.clones import Clone

if TYPE_CHECKING:
    import pandas as pd
    from pyiceberg.table import Table

PRODUCT = "silver.arrivals_daily"
_WATCHED = """
import subprocess, sys
real = subprocess.Popen.__init__
def no_spark(self, args, *rest, **named):
    words = [args] if isinstance(args, str) else [str(word) for word in args]
    assert not any('spark' in word for word in words), words
    return real(self, args, *rest, **named)
subprocess.Popen.__init__ = no_spark
from lakehouse_backfill.cli.main import run
def watch():
    try:
        run()
    finally:
        assert not {'pyspark', 'great_expectations'} & set(sys.modules)
"""
_ONE = f"{_WATCHED}watch()\n"
#: Many commands, each a fork of a process that has loaded what all of them load.
_MANY = f"""{_WATCHED}
import json, os, traceback
import duckdb, pyiceberg.catalog.sql, pyiceberg.io.pyarrow, lakehouse_backfill.project
*options, lines, folder = sys.argv[1:]
codes = []
for number, line in enumerate(json.loads(lines)):
    child = os.fork()
    if not child:
        sys.argv = [sys.argv[0], *options, *line.split()]
        code = 1
        try:
            for descriptor in (1, 2):
                kept = open(f"{{folder}}/{{number}}.{{descriptor}}", "w")
                os.dup2(kept.fileno(), descriptor)
            watch()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


@dataclass(frozen=True)
class Demo:
    """A finished demo in a clone of its own."""

    clone: Clone
    folder: Path
    transcript: str

    def json(self, *args: str) -> dict[str, Any]:
        """Run a command of the demo's project and give its envelope."""
        program = str(self.clone.root / ".venv" / "bin" / "lakehouse-backfill")
        done = self.clone.run(program, "--project", str(self.folder), "--json", *args)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode
        return found

    def watched(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the program and fail it when it starts Spark or loads what only Spark needs."""
        return self.clone.run(self._python, "-c", _ONE, "--project", str(self.folder), *args)

    def watched_all(self, lines: Sequence[str], kept: Path) -> dict[str, tuple[int, str]]:
        """Do that for many command lines at once; give how each ended, and its stderr."""
        folder = ("--project", str(self.folder))
        done = self.clone.run(self._python, "-c", _MANY, *folder, json.dumps(lines), str(kept))
        assert done.returncode == 0, done.stderr
        said = [(kept / f"{number}.2").read_text("utf-8") for number in range(len(lines))]
        return dict(zip(lines, zip(json.loads(done.stdout), said, strict=True), strict=True))

    @property
    def _python(self) -> str:
        return str(self.clone.root / ".venv" / "bin" / "python")

    def table(self) -> Table:
        """Open the product with nothing of ours but the catalog's address."""
        lake = self.folder / ".lakehouse"
        catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse"
        )
        return catalog.load_table(PRODUCT)

    def rows(self, snapshot_id: int) -> pd.DataFrame:
        """Read the product at a snapshot."""
        return self.table().scan(snapshot_id=snapshot_id).to_arrow().to_pandas()

    def plain_transcript(self) -> str:
        """Give the story without what differs from run to run and from machine to machine."""
        text = self.transcript.partition("\nsteps\n")[0].replace(str(self.folder), "DEMO")
        program = str(self.clone.root / ".venv" / "bin" / "lakehouse-backfill")
        text = text.replace(f"'{program}'", "PROGRAM").replace(program, "PROGRAM")
        text = text.replace("  lakehouse-backfill", "  PROGRAM")
        text = re.sub(r"bf-[0-9a-f]{10}", "RUN", text)
        text = re.sub(r"\d+(\.\d+)? s\b", "N s", text)
        return re.sub(r"reads at most [\d,]+", "reads at most N", text)
