"""Runs code of a job under the guard in processes of its own, without Spark.

A guard cannot be removed from a process, so each run has a fresh one. A worker is a process that
only unpickles what a driver pickled, as Spark's workers do. Run as a module, it is that process.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The module whose function `attempt_N` stands in line N.
FILE = "jobs/effects.py"


@dataclass(frozen=True)
class Tried:
    """What came of one line: attempts as `sink what`, and its result or error as text."""

    attempts: tuple[str, ...]
    places: tuple[tuple[str, int], ...]
    result: str

    @property
    def sinks(self) -> set[str]:
        """The sinks that the line tried to reach."""
        return {each.partition(":")[0] for each in self.attempts}


def try_lines(
    project: Path,
    lines: Sequence[str],
    *,
    in_worker: bool = False,
    environment: Mapping[str, str] | None = None,
    declared: Sequence[str] = (),
) -> list[Tried]:
    """Run each line as a function of a job; what it returns goes into `result`.

    A line that starts with a bracket has parameters: `(held=1): return held`. `SCRATCH` is the
    scratch folder.
    """
    file = project / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = [line if line.startswith("(") else f"(): {line}" for line in lines]
    bodies = [f"def attempt_{number}{line}" for number, line in enumerate(whole, 1)]
    file.write_text("\n".join(bodies) + "\n")
    question: dict[str, Any] = {"project": str(project), "count": len(lines)}
    question["declared"] = list(declared)
    if in_worker:
        pickled = _process("pickle", question, environment)
        return _tried(_process("worker", {"pickled": pickled}, environment))
    return _tried(_process("driver", question, environment))


def _tried(answers: list[dict[str, Any]]) -> list[Tried]:
    return [
        Tried(
            tuple(f"{one['sink']}: {one['what']}" for one in each["attempts"]),
            tuple((one["file"], one["line"]) for one in each["attempts"]),
            each["result"],
        )
        for each in answers
    ]


def _process(
    role: str, question: Mapping[str, Any], environment: Mapping[str, str] | None
) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-m", __name__, role],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _in_driver(question: Mapping[str, Any]) -> list[Any]:
    from lakehouse_backfill.adapters.spark.guard import driver_guard
    from lakehouse_backfill.errors import WriteForbidden

    project, answers = Path(question["project"]), []
    driver_guard.declare_secrets(question["declared"])
    module = _job_module(project)
    for number in range(1, question["count"] + 1):
        attempts, result = [], ""
        try:
            with driver_guard.watch_job(project):
                result = repr(getattr(module, f"attempt_{number}")())
        except WriteForbidden as error:
            attempts = error.data["attempts"]
        except BaseException as error:  # noqa: BLE001 (the result is what is asserted)
            result = f"{type(error).__name__}: {error}"
        answers.append({"attempts": attempts, "result": result})
    return answers


def _pickled(question: Mapping[str, Any]) -> list[Any]:
    from pyspark.serializers import CloudPickleSerializer

    from lakehouse_backfill.adapters.spark.guard import driver_guard

    project, texts = Path(question["project"]), []
    driver_guard.declare_secrets(question["declared"])
    module = _job_module(project)
    for number in range(1, question["count"] + 1):
        with driver_guard.watch_job(project):
            command = (getattr(module, f"attempt_{number}"), None)
            texts.append(base64.b64encode(CloudPickleSerializer().dumps(command)).decode())
    return texts


def _in_worker(question: Mapping[str, Any]) -> list[Any]:
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.taskcontext import TaskContext

    answers = []
    for text in question["pickled"]:
        attempts, result = [], ""
        try:
            command = CloudPickleSerializer().loads(base64.b64decode(text))
            result = repr(command[0]())
        except BaseException as error:  # noqa: BLE001 (the result is what is asserted)
            result = f"{type(error).__name__}: {error}"
        try:
            TaskContext._setTaskContext(None)
        except PermissionError as error:
            attempts = json.loads(str(error).partition("side effects: ")[2])
        answers.append({"attempts": attempts, "result": result})
    return answers


def _job_module(project: Path) -> Any:
    from pyspark import cloudpickle

    from lakehouse_backfill.adapters.spark.guard import driver_guard

    spec = importlib.util.spec_from_file_location("effects", project / FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["effects"] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    vars(module)["SCRATCH"] = driver_guard.scratch_folder()
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    roles = {"driver": _in_driver, "pickle": _pickled, "worker": _in_worker}
    sys.stdout.write(json.dumps(roles[sys.argv[1]](json.load(sys.stdin))))
