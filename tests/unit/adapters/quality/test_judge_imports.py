"""Great Expectations is imported beside the start of Spark, and neither gets half of PySpark."""

import subprocess
import sys

_BOTH_IMPORT = """
import sys, time
from importlib.abc import MetaPathFinder

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("pyspark."):
            time.sleep(0.01)

sys.meta_path.insert(0, Slow())
from lakehouse_backfill.adapters.quality import judge

judge.start_gx_import()
time.sleep(0.3)  # when the other thread is in the middle of PySpark
from pyspark.sql import SparkSession

judge._IMPORT_THREADS[0].join()
from great_expectations.compatibility import pyspark

print(pyspark.SparkSession is SparkSession, bool(pyspark.Bucketizer))
# What few expectations need is loaded when one of them uses it.
print(*("scipy.stats._stats_py" in sys.modules, "altair.vegalite" in sys.modules))
from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as kl

print(kl.stats.norm.cdf(0), bool(kl.alt.Chart))
"""


def test_both_threads_get_the_whole_of_pyspark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BOTH_IMPORT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "True True\nFalse False\n0.5 True\n", done.stderr
