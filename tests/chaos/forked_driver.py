"""Commands in drivers that share one Java process, each a fork that may be killed.

The Java process outlives a killed driver here, so whatever it was told to do still happens; where
both die at once, see test_determinism.py. A start of Spark is paid once.

python -m tests.chaos.forked_driver FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.faults import Kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS = "rows.json"


class ForkedDrivers:
    """The process that all drivers are forked from, as the tests see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log, self._rows = folder / "drivers.log", folder / ROWS
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.forked_driver", str(folder)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
        )

    def command(self, *words: str, point: str = "nowhere", nth: int = 1) -> int:
        """Run one command of the program, killed at a point; give its exit code, or -9."""
        return self._ask({"words": words, "point": point, "nth": nth})

    def sql(self, text: str) -> list[list[Any]]:
        """Run a statement in a driver; give its rows."""
        assert self._ask({"sql": text}) == 0, self.log()
        found: list[list[Any]] = json.loads(self._rows.read_text())
        return found

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log()
        return int(answer)


def main() -> None:
    import tests.chaos.warm  # noqa: F401 (what each driver would load again)
    from lakehouse_backfill.project import Project
    from lakehouse_backfill.wiring.adapters import STATE_FOLDER

    folder = sys.argv[1]
    # What commands print is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = Project.open(Path(folder)).wiring.spark
    spark.sql("SELECT 1").collect()
    # A file in place of the folder: no command starts a Java process of its own beside this one.
    (Path(folder) / STATE_FOLDER).mkdir(exist_ok=True)
    (Path(folder) / STATE_FOLDER / "expected-rows").touch()
    for line in sys.stdin:
        request = json.loads(line)
        if "sql" in request:
            code = _forked(partial(_query, spark, request["sql"], Path(folder) / ROWS))
        else:
            code = _forked(partial(_drive, folder, **request))
        answers.write(f"{code}\n")
        answers.flush()


def _query(spark: SparkSession, text: str, file: Path) -> None:
    rows = [list(row) for row in spark.sql(text).collect()]
    file.write_text(json.dumps(rows, default=str))


def _drive(folder: str, words: list[str], point: str, nth: int) -> None:
    from lakehouse_backfill import fault_points
    from lakehouse_backfill.cli.main import app

    fault_points.install_hook(Kill(point, nth))
    app(["--project", folder, "--quiet", *words], prog_name="lakehouse-backfill")


def _forked(action: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        _own_connections()
        action()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _own_connections() -> None:
    """Talk to Java by new connections: those of the parent have its thread's state."""
    from pyspark import SparkContext

    client = SparkContext._gateway._gateway_client  # type: ignore[union-attr]
    client.deque.clear()
    client.thread_connection = threading.local()


if __name__ == "__main__":
    main()
