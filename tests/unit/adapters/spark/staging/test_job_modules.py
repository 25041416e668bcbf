"""Modules of a job come from the folder of its code alone (D6); and what a job declares."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import cloudpickle

from lakehouse_backfill.adapters.spark.staging.jobs import job_imports, load_job
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.errors import ConfigError

pytestmark = pytest.mark.req("D6")


def code(root: Path, rate: int) -> tuple[Path, Path]:
    folder = root / f"v{rate}"
    (folder / "jobs" / "lib").mkdir(parents=True)
    (folder / "jobs" / "lib" / "rates.py").write_text(f"RATE = {rate}\n")
    (folder / "jobs" / "beside.py").write_text(f"PLUS = {rate}\n")
    job = folder / "jobs" / "job.py"
    job.write_text("")
    return folder, job


def rates(found: tuple[Path, Path]) -> tuple[int, int]:
    with job_imports(*found):
        return (
            importlib.import_module("jobs.lib.rates").RATE,
            importlib.import_module("beside").PLUS,
        )


def test_each_version_of_a_job_imports_its_own_modules_and_leaves_none_behind(tmp_path) -> None:
    one, other = code(tmp_path, 2), code(tmp_path, 3)
    path, before = list(sys.path), set(sys.modules)
    assert [rates(found) for found in (one, other, one)] == [(2, 2), (3, 3), (2, 2)]
    left = {name for name in set(sys.modules) - before if name.split(".")[0] in ("jobs", "beside")}
    assert (sys.path, left) == (path, set())


def test_a_module_of_the_same_name_that_was_there_before_is_there_again(tmp_path: Path) -> None:
    found, mine = code(tmp_path, 2), ModuleType("beside")
    sys.modules["beside"] = mine
    try:
        assert rates(found) == (2, 2)
        assert sys.modules["beside"] is mine
    finally:
        del sys.modules["beside"]


def test_nothing_stays_imported_when_the_job_fails(tmp_path: Path) -> None:
    found = code(tmp_path, 2)
    with pytest.raises(ModuleNotFoundError), job_imports(*found):
        importlib.import_module("jobs.lib.rates.none")
    assert "jobs.lib.rates" not in sys.modules


def test_a_module_that_is_imported_while_tasks_are_made_travels_with_them(tmp_path: Path) -> None:
    found = code(tmp_path, 2)
    (found[0] / "jobs" / "lib" / "rates.py").write_text("def rate():\n    return 2\n")
    (found[0] / "jobs" / "lib" / "never.py").write_text("")
    before = set(cloudpickle.list_registry_pickle_by_value())
    with job_imports(*found):
        task = cloudpickle.dumps(importlib.import_module("jobs.lib.rates").rate)
    # Here no file of the job can be imported any more, as on an executor.
    assert pickle.loads(task)() == 2
    left = set(cloudpickle.list_registry_pickle_by_value()) - before
    assert {"jobs.lib.never", "beside"}.isdisjoint(left)


TWO = """\
from lakehouse_backfill.transforms import intermediate, transform

@intermediate(name="rate", inputs=("rates",))
def one(config, rates):
    return rates

again = one

@intermediate(name="{name}", inputs=("rates",))
def other(config, rates):
    return rates.limit(1)

@transform(name="daily", version="1.0.0", inputs=("rate",))
def daily(context, rate):
    return rate
"""


@pytest.mark.req("X6")
def test_two_intermediate_results_of_one_name_are_refused(tmp_path: Path) -> None:
    wanted = TransformRef(name="daily", version="1.0.0", file="job.py")
    (tmp_path / "job.py").write_text(TWO.format(name="other"))
    job = load_job(None, tmp_path, wanted, {"rates"})  # type: ignore[arg-type]
    assert [one.info.name for one in job.intermediates] == ["rate"]
    (tmp_path / "job.py").write_text(TWO.format(name="rate"))
    with pytest.raises(ConfigError, match=r"job\.py holds two intermediate results of one name"):
        load_job(None, tmp_path, wanted, {"rates"})  # type: ignore[arg-type]
