"""Ctrl-C while Spark works, and an exception in a function of a job, as people see them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
#: Spark starts five times for a few rows.
SPARK = """\
    spark:
      spark.master: local[2]
      spark.sql.shuffle.partitions: "2"
      spark.sql.codegen.wholeStage: "false"
      spark.sql.codegen.factoryMode: NO_CODEGEN
      spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""
#: The live job computes where the profile's own Spark does.
PLACES = """\
    compute:
      pools: {{backfill: {{spark.master: "local[2,1]"}}}}
      scratch: {{spare: "{spare}"}}
      live: [{{name: ingest, spark: {{spark.master: "local[2]"}}}}]
"""
#: Works for a while, then fails on the row whose value is 2.
JOB = """
import time
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@transform(name="tenfold", version="1.0.0", inputs=("s",))
def tenfold(context, s):
    def convert(v):
        time.sleep(3)
        return v // (v - 2)
    return s.select("d", "k", F.udf(convert, LongType())("v").alias("v"))
"""


class Terminal:
    """A project, and commands that are typed in a terminal: each is a process group."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.lab.make()
        with (self.lab.folder / "catalog" / "profiles.yaml").open("a", encoding="utf-8") as file:
            file.write(SPARK)
        (self.lab.folder / "jobs" / "tenfold.py").write_text(JOB, encoding="utf-8")

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = "from lakehouse_backfill.cli.entry import run; run()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=self.lab.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip

    def do(self, *words: str) -> tuple[int, str]:
        command = self.start(*words)
        text, _ = command.communicate(timeout=TIMEOUT_S)
        return command.returncode, text

    def planned(self, manifest: str) -> str:
        """Plan and approve a run, which needs no Spark, in forks of a process; return its id."""
        run_id: str = self.lab.must("plan", manifest, "--by", "ana").data["run_id"]
        self.lab.must("approve", run_id, "--by", "ana")
        return run_id


def children(parent: int) -> dict[int, str]:
    """List the processes that a process started, with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            line = stat.with_name("cmdline").read_text("utf-8").replace("\0", " ")
        except OSError:
            continue  # It has ended.
        if int(fields[1]) == parent:
            found[int(stat.parent.name)] = line
    return found


def jvm_of(command: subprocess.Popen[str]) -> int | None:
    """Find the JVM that a command has started."""
    found = [pid for pid, line in children(command.pid).items() if "/bin/java " in line]
    return found[0] if found else None


def working_jvm_of(command: subprocess.Popen[str]) -> int | None:
    """Find the JVM one of whose Python workers has begun to work."""
    jvm = jvm_of(command)
    daemons = [pid for pid, line in children(jvm or 0).items() if "pyspark.daemon" in line]
    return jvm if any(children(daemon) for daemon in daemons) else None


def wait_for(
    find: Callable[[subprocess.Popen[str]], int | None], command: subprocess.Popen[str]
) -> int:
    """Wait until the process is there."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and command.poll() is None:
        if found := find(command):
            return found
        time.sleep(0.02)
    command.kill()
    raise AssertionError(command.communicate()[0])


def wait_until_ended(process: int) -> None:
    """Wait until a process has ended; where nobody asks for its end, it stays as a zombie."""
    deadline, stat = time.monotonic() + TIMEOUT_S, Path(f"/proc/{process}/stat")
    while stat.exists() and stat.read_text("ascii", "replace").rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def interrupt(command: subprocess.Popen[str], jvm: int) -> None:
    """Press Ctrl-C; the command says one sentence, and the JVM ends."""
    assert os.getpgid(jvm) != os.getpgid(command.pid)
    os.killpg(command.pid, signal.SIGINT)
    text, _ = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 130, text
    assert "interrupted: stopped by Ctrl-C\n  state: " in text
    assert "Traceback" not in text
    assert "py4j" not in text
    wait_until_ended(jvm)


@pytest.mark.long
@pytest.mark.req("X3")
def test_ctrl_c_ends_in_one_sentence_and_the_run_goes_on_to_what_its_job_raises(
    tmp_path: Path,
) -> None:
    terminal, spare = Terminal(tmp_path), tmp_path / "spare"
    spare.mkdir()
    with (terminal.lab.folder / "catalog" / "profiles.yaml").open("a", encoding="utf-8") as file:
        file.write(PLACES.format(spare=spare))
    manifest = terminal.lab.manifest("run.yaml", "2024-01-02", "2024-01-03")
    with (terminal.lab.folder / manifest).open("a", encoding="utf-8") as file:
        file.write("compute: {pool: backfill, scratch: spare}\n")
    run_id = terminal.planned(manifest)

    for moment in (jvm_of, working_jvm_of):
        command = terminal.start("run", run_id, "--by", "ana")
        jvm = wait_for(moment, command)
        if moment == working_jvm_of:
            used = {path.name.split("-")[0] for path in spare.glob("*/*")}
            assert {"blockmgr", "spark"} <= used
        interrupt(command, jvm)
    left = set(spare.iterdir())
    assert "state    staging" in terminal.do("status", run_id)[1]

    code, text = terminal.do("run", run_id, "--by", "ana")
    cause = "ZeroDivisionError: integer division or modulo by zero, at jobs/tenfold.py:11"
    assert (code, cause in text) == (3, True), text
    log = " ".join(terminal.do("log", run_id)[1].split())
    assert "ZeroDivisionError" in log
    assert "jobs/tenfold.py:11" in log
    assert set(spare.iterdir()) == left, "what a JVM left that was interrupted as it started"

    for file in ("jobs/tenfold.py", manifest):
        path = terminal.lab.folder / file
        mended = path.read_text("utf-8").replace("1.0.0", "1.1.0").replace("v // (v - 2)", "v * 10")
        path.write_text(mended, encoding="utf-8")
    fix = re.findall("then: lakehouse-backfill (plan --revise .*)", text)[0]
    assert terminal.do(*fix.split(), "--by", "ana")[0] == 0
