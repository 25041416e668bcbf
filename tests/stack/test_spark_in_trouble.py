"""Spark on S3 and a REST catalog, while the store is busy, the catalog away, or the clock wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tests.chaos.lab import BY, DAYS, TARGET
from tests.chaos.oracle import MARK
from tests.stack import catalog_rules
from tests.stack.busy_store import BusyStore
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import Fault
from tests.stack.rest_lab import BACK
from tests.stack.servers import Rest, Seaweed
from tests.stack.spark_lab import SparkRestLab
from tests.stack.test_vended_spark import jars
from tests.support.skew import ChangingSkew

pytestmark = pytest.mark.in_turn(2, of="file")
WRONG, RIGHT = 100, 10
_NAME = "troubled_spark"
#: A run that may fail six times in a row waits for 2, 4, 8, 16 and 32 seconds: for 62 together.
AWAY_S = 60


class TroubledLab(SparkRestLab):
    """Whose requests to the catalog and the store pass through what fails on purpose."""

    busy: BusyStore
    clock: ChangingSkew
    catalogs: Catalogs

    def begin_run(self, name: str, first: str, stop: str, limits: str = "") -> str:
        """Plan and approve a run of some days, each of which is a chunk; give its name."""
        manifest = self.manifest(f"{name}.yaml", first, stop)
        file = self.folder / manifest
        text = file.read_text("utf-8").replace("_chunk: 1", f"_chunk: 1{limits}")
        file.write_text(text, encoding="utf-8")
        run = str(self.repeat("plan", manifest, *BY).data["run_id"])
        self.repeat("approve", run, *BY)
        return run

    def finish(self, run: str, *verbs: str) -> None:
        for verb in verbs or ("run", "accept", "publish"):
            self.repeat(verb, run, *BY)


@pytest.fixture(scope="module")
def lab(
    request: pytest.FixtureRequest, rest: Rest, seaweed: Seaweed,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TroubledLab]:  # fmt: skip
    folder = tmp_path_factory.mktemp("spark")
    (rest.folder / _NAME).mkdir()
    (rest.folder / _NAME / "filer").write_text(seaweed.filer, encoding="utf-8")
    catalogs = Catalogs(request, folder, _NAME)
    direct = {"uri": f"{rest.uri}/{_NAME}", **seaweed.s3()}
    made = TroubledLab(
        folder, catalogs.behind([])["uri"], direct, rest.folder / _NAME / "rest.db", "branch"
    )
    made.catalogs, made.clock = catalogs, ChangingSkew(folder)
    with BusyStore(seaweed, share=0) as made.busy, pytest.MonkeyPatch.context() as patch:
        made.login = {
            **seaweed.s3(), "s3.endpoint": made.busy.uri, "s3.retry.min-wait-ms": "20",
            "rest.client.socket-timeout-ms": "3000",
        }  # fmt: skip
        patch.setenv("LAKEHOUSE_BACKFILL_JARS", str(jars(folder / "jars")))
        patch.setenv("LAKEHOUSE_BACKFILL_SPARK_LOG", str(folder / "said" / "spark.log"))
        for name, text in made.clock.environment.items():
            patch.setenv(name, text)
        made.begin()
        for name in made.clock.environment:
            patch.delenv(name)
        yield made
        made.stop()
    catalogs.close()


Rows = list[tuple[str, int, int]]


def expected(*days: str) -> Rows:
    """Give every row: amount k of a day, at the right rate on these days."""
    return restated([(d, k, k * WRONG) for d in DAYS for k in range(1, 4)], *days)


def restated(rows: Rows, *days: str) -> Rows:
    """Give the rows with the right rate on these days, the others as they were."""
    return [(d, k, k * RIGHT if d in days else v) for d, k, v in rows]


@pytest.mark.req("T8", "T4", "X3")
def test_a_fifth_of_all_requests_to_the_store_is_put_off_while_spark_stages(
    lab: TroubledLab,
) -> None:
    """In `test_busy_store.py` all commands meet that, without Spark."""
    run = lab.begin_run("busy", DAYS[1], DAYS[4])
    lab.busy.share = 0.2
    lab.finish(run, "run")
    lab.busy.share = 0
    assert lab.busy.clients["s3fileio"] >= 3, lab.busy.clients
    lab.finish(run, "accept", "publish")
    assert lab.oracle.rows(TARGET) == expected(*DAYS[1:4])
    lab.repeat(*BACK)
    assert lab.oracle.rows(TARGET) == expected()


@pytest.mark.req("T8", "T4", "X3")
def test_the_catalog_is_away_from_the_commit_of_a_chunk_on(lab: TroubledLab) -> None:
    """Of each chunk: after it landed or before; it refuses connections, or answers none.

    No request to a server that refuses connections is sent again, and each one that is not answered
    ends after the time of the profile: how long the catalog is away makes no difference.
    """
    proxy = lab.catalogs.proxy
    run = lab.begin_run("away", DAYS[1], DAYS[4])
    before = lab.oracle.rows(TARGET)
    for when, then in (
        ("after", proxy.leave), ("before", proxy.leave), ("after", proxy.fall_silent)
    ):  # fmt: skip
        fault = proxy.fail(
            Fault("POST", catalog_rules.COMMITS, when, None, holds="chunk-id", then=then)
        )
        ended = [lab.do("run", run, *BY) for _ in range(2 if then == proxy.leave else 1)]
        proxy.come_back()
        assert fault.met == 1
        assert [one.code for one in ended] == [5, 6][: len(ended)], ended
        assert ended[0].error["state"] == "the shadow may hold the chunk; nothing was published"
        assert lab.oracle.rows(TARGET) == before
    lab.finish(run)
    assert lab.oracle.rows(TARGET) == restated(before, *DAYS[1:4])
    assert _chunks_committed(lab, run) == 3


@pytest.mark.req("T8", "T4", "X3")
def test_a_run_that_may_fail_often_waits_a_minute_for_the_catalog_that_left_during_a_commit(
    lab: TroubledLab,
) -> None:
    """One command: it finds the chunk that landed before the catalog left, and goes on with it."""
    proxy, is_back = lab.catalogs.proxy, threading.Event()
    before = lab.oracle.rows(TARGET)
    run = lab.begin_run("patient", DAYS[7], "2024-01-09", ", failures_in_a_row: 6")

    def come_back() -> None:
        proxy.come_back()
        is_back.set()

    def leave_for_a_minute() -> None:
        proxy.leave()
        threading.Timer(AWAY_S, come_back).start()

    left = Fault(
        "POST", catalog_rules.COMMITS, "after", None, holds="chunk-id", then=leave_for_a_minute
    )
    proxy.fail(left)
    assert lab.must("run", run, *BY).data["state"] == "validated"
    assert is_back.is_set()
    assert left.met == 1
    lab.finish(run, "accept", "publish")
    assert lab.oracle.rows(TARGET) == restated(before, DAYS[7])
    assert _chunks_committed(lab, run) == 1


@pytest.mark.req("T8", "X3")
def test_the_clock_of_the_driver_is_wrong_from_the_beginning_or_from_a_commit_on(
    lab: TroubledLab,
) -> None:
    run = lab.begin_run("clock", DAYS[4], DAYS[7])
    before = lab.oracle.catalog()
    for seconds in (300, -300):
        lab.clock.set(seconds)
        _refuse(lab, run, "ahead of" if seconds > 0 else "behind")
        assert lab.oracle.catalog() == before
    target = lab.oracle.rows(TARGET)
    for seconds in (-300, 300):
        lab.clock.set(0)
        jump = partial(lab.clock.set, seconds)
        lab.catalogs.proxy.fail(
            Fault("POST", catalog_rules.COMMITS, "after", 200, holds="chunk-id", then=jump)
        )
        _refuse(lab, run, "ahead of" if seconds > 0 else "behind")
        assert lab.oracle.rows(TARGET) == target
    lab.clock.set(0)
    lab.finish(run)
    assert lab.oracle.rows(TARGET) == restated(target, *DAYS[4:7])
    assert _chunks_committed(lab, run) == 3


def _refuse(lab: TroubledLab, run: str, how: str) -> None:
    ended = lab.do("run", run, *BY)
    assert (ended.code, ended.error["code"]) == (6, "wrong-clock"), ended
    assert f" s {how} that of the catalog's server" in ended.error["problem"]


def _chunks_committed(lab: TroubledLab, run: str) -> int:
    """Count the chunks whose commits the target has, each of which has to be there once."""
    marks = [
        found[f"{MARK}chunk-id"]
        for found in lab.oracle.summaries(TARGET)
        if found.get(f"{MARK}run-id") == run and f"{MARK}chunk-id" in found
    ]
    assert len(marks) == len(set(marks)), marks
    return len(marks)
