"""Restates two days by Spark and rolls them back, on the catalog of these properties.

python -m tests.stack.vended_by_spark FOLDER PROPERTIES

Prints the target's snapshot after each verb, as the program itself sees it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lakehouse_backfill.adapters.spark.session.session import close_session
from tests.support.spark.declared import QUICK_JAVA
from tests.support.spark.restating import RestateLab

SPARK = {
    "spark.master": "local[2]", "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false", "spark.driver.extraJavaOptions": QUICK_JAVA,
}  # fmt: skip


def main(folder: Path, catalog: dict[str, str]) -> None:
    lab = RestateLab(folder, SPARK, lake={"catalog": catalog, "isolation": "branch"})
    project = lab.declare("plain.py")
    lab.fill(2)
    heads = {"filled": lab.head()}
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")
    project.run(run, "ana")
    heads["validated"] = lab.head()
    project.accept(run, "ana")
    project.publish(run, "ana")
    heads["published"] = lab.head()
    assert project.verify(run, deep=True).intact
    project.rollback(lab.table("out"), reason="wrong", by="ana")
    heads["rolled back"] = lab.head()
    sys.stdout.write(json.dumps({"table": lab.table("out"), "heads": heads}))
    close_session()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
