"""Jobs on Spark run from the archive of their run, with their own modules (D6)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import pytest

from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.adapters.system.project_code import ArchivedFiles, CodeArchive
from lakehouse_backfill.domain.plan import Plan
from tests.support.spark.lake import Lake, PlanMaker, no_secret

pytestmark = pytest.mark.req("D6")
JOB = """
from pyspark.sql.functions import udf
from jobs.lib import rates
from lakehouse_backfill.transforms import transform

@udf("bigint")
def rated(value):
    return rates.rated(value)

@transform(name="copy", version="1.0.0", inputs=("src",))
def copy(context, src):
    from jobs.lib.late import PLUS
    return src.select("d", "k", (rated("v") + PLUS).alias("v"))
"""
FILES = {
    "jobs/job.py": JOB,
    "jobs/lib/__init__.py": "",
    "jobs/lib/rates.py": "RATE = {rate}\n\ndef rated(value):\n    return value * RATE\n",
    "jobs/lib/late.py": "PLUS = {rate}\n",
}


def coded(plan: Plan, rate: int) -> tuple[Plan, ArchivedFiles]:
    texts = {name: text.replace("{rate}", str(rate)) for name, text in FILES.items()}
    marks = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    changes = {"code_hash": marks["jobs/job.py"], "files": marks}
    resolved = plan.resolved.model_copy(update=changes)
    kept = [{"file": n, "sha256": marks[n], "text": text} for n, text in texts.items()]
    return plan.model_copy(update={"resolved": resolved}), kept


@pytest.mark.long
def test_two_versions_of_one_job_run_in_one_process_each_with_its_own_modules(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    maker = daily()
    for name in FILES:
        lake.job("raise RuntimeError('the working file was run')", name)
    found = {}
    for rate in (2, 3, 2):
        plan, kept = coded(maker.make(f"bf-{rate}"), rate)
        code = CodeArchive(lake.project, lake.project / "code", lambda _, k=kept: k)
        staging = SparkStaging(lake.tables, code.restore_folder, no_secret)
        staging.stage(plan, plan.resolved.chunks[0], 1)
        days = plan.resolved.scope.partitions
        found[rate] = [row[1:] for row in lake.rows("shadow") if row[0].isoformat() in days]
        base = [row[1:] for row in lake.rows("src") if row[0].isoformat() in days]
        assert sorted(found[rate]) == sorted((k, v * rate + rate) for k, v in base)
    assert [name for name in sys.modules if name.split(".")[0] == "jobs"] == []
    assert not [place for place in sys.path if place.startswith(str(lake.project))]
