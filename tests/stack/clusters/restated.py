"""Restates two days on a cluster, with the settings of a template's profile; kills its executors.

python -m tests.stack.clusters.restated PROFILE FOLDER OVERRIDES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.spark.session.session import close_session, open_session
from lakehouse_backfill.domain.profile import Profile
from tests.support.spark.declared import CATALOG, template_settings
from tests.support.spark.private_tasks import LostExecutors, restate


def main(name: str, folder: Path, overrides: dict[str, str]) -> None:
    spark = {**template_settings(name), **overrides}
    (folder / "warehouse").mkdir(parents=True)
    session = open_session(Profile(catalog=CATALOG, spark=spark), folder)
    watch = LostExecutors(session.sparkContext)
    fault_points.install_hook(watch)
    sums = restate(folder, spark)
    sys.stdout.write(json.dumps({"checksums": sums, "lost": watch.lost}))
    close_session()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
