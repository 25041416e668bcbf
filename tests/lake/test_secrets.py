"""Secrets of a profile are in no command line, performance data or event log, and not for jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECRET = "only-the-catalog-may-know-this"
#: Starts a session of its own: that of the tests has no secrets.
PROGRAM = """
import sys, tempfile
from pathlib import Path
from lakehouse_backfill.adapters.spark.session.session import open_session
from lakehouse_backfill.adapters.spark.session.write_guard import forbid_job_writes
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import WriteForbidden

root, secret = Path(sys.argv[1]), sys.argv[2][::-1]
names = ["header.X-Own", "s3.secret-access-key", "s3.access-key-id", "credential"]
profile = Profile(
    catalog={
        "name": "lake", "type": "sql", "uri": f"sqlite:///{root}/c.db",
        "warehouse": f"file://{root}/w", **dict.fromkeys(names, secret),
    },
    spark={
        "spark.master": "local[1]", "spark.hadoop.fs.s3a.secret.key": secret,
        "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{root}/events",
    },
)
(root / "events").mkdir()
spark = open_session(profile, root)
files = [*Path("/proc").glob("[0-9]*/cmdline"), *Path(tempfile.gettempdir()).glob("hsperf*/*")]
for path in files:
    try:
        assert secret.encode() not in path.read_bytes(), path
    except OSError:
        continue  # the process has ended
assert spark.conf.get("spark.sql.catalog.lake.header.X-Own") == secret
assert spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == secret
with forbid_job_writes():
    try:
        spark.conf.get("spark.sql.catalog.lake.credential")
    except WriteForbidden as error:
        assert secret not in str(error)
    else:
        raise AssertionError("a job read a secret")
    spark.conf.get("spark.sql.session.timeZone")
assert spark.sql("SELECT 1 AS one").collect()[0].one == 1
spark.stop()
logs = [path for path in (root / "events").rglob("*") if path.is_file()]
assert any(b"spark.sql.catalog.lake" in path.read_bytes() for path in logs)
assert not any(secret.encode() in path.read_bytes() for path in logs)
"""


def test_secrets_of_the_profile_are_seen_by_nobody_else(tmp_path: Path) -> None:
    # The secret is given backwards: the command line of the test itself would hold it.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), SECRET[::-1]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
