"""Spark on a REST catalog: what it commits, with which rights, under lost answers, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.lab import BY, DAYS, TARGET
from tests.chaos.oracle import CONTROL
from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import TOKENS, Fault, Proxy
from tests.stack.rest_lab import require_no_secret
from tests.stack.servers import Rest
from tests.stack.spark_lab import SparkRestLab
from tests.stack.test_rights import rights

SECRET = "hunter2-of-spark-71c0aa4e"
WRONG, RIGHT = 100, 10
_NAME = "spark_on_rest"


@pytest.fixture(scope="module")
def catalogs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Catalogs]:
    made = Catalogs(request, tmp_path_factory.mktemp("catalogs"), _NAME)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lab(
    catalogs: Catalogs, rest: Rest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkRestLab]:
    """Whose commands, and Spark, log in by OAuth2; one session for all tests here."""
    uri = catalogs.behind([])["uri"]
    folder = tmp_path_factory.mktemp("spark")
    made = SparkRestLab(
        folder, uri, {"uri": f"{rest.uri}/{_NAME}"}, rest.folder / _NAME / "rest.db", "clone"
    )
    made.login = {"credential": f"robot:{SECRET}", "oauth2-server-uri": uri + TOKENS}
    catalogs.proxy.clients = {"robot": SECRET}
    catalogs.proxy.rights_of = catalog_rules.rights_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_BACKFILL_SPARK_LOG", str(folder / "said" / "spark.log"))
        made.begin()
    yield made
    made.stop()


def expected(*days: str) -> list[tuple[str, int, int]]:
    """Give every row: amount k of a day, at the right rate on these days."""
    return [(d, k, k * (RIGHT if d in days else WRONG)) for d in DAYS for k in range(1, 4)]


#: What happens to Spark's commits of chunks, one after the other.
LOST = [("before", 503), ("before", None), ("after", None), ("after", 503), ("after", 500)]


@pytest.mark.req("X1", "X12", "U1", "U10", "U12")
@pytest.mark.parametrize(("isolation", "first", "losses"), [("clone", 1, []), ("branch", 4, LOST)])
def test_a_restatement_by_spark_goes_forth_and_back_with_the_rights_of_the_page(
    lab: SparkRestLab, catalogs: Catalogs, isolation: str, first: int, losses: list[Any]
) -> None:
    proxy: Proxy = catalogs.proxy
    lab.isolate(isolation)
    scope, needed = DAYS[first : first + 3], {}
    proxy.faults = [
        Fault("POST", catalog_rules.COMMITS, when, status, holds="chunk-id")
        for when, status in losses
    ]
    allowed = {verb: cells[isolation] for verb, cells in rights().items()}

    def give(*arguments: str) -> dict[str, Any]:
        verb = arguments[0]
        proxy.allowed, proxy.used = allowed[verb], set()
        data = lab.repeat(*arguments).data
        needed[verb] = frozenset(proxy.used)
        return data

    manifest = lab.manifest(f"{isolation}.yaml", scope[0], DAYS[first + 3])
    run = give("plan", manifest, *BY)["run_id"]
    for verb in ("approve", "stage", "validate", "accept"):
        give(verb, run, *BY)
    assert lab.oracle.rows(TARGET) == expected()
    give("publish", run, *BY)
    assert lab.oracle.rows(TARGET) == expected(*scope)
    give("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    assert lab.oracle.rows(TARGET) == expected()
    assert needed == {verb: allowed[verb] for verb in needed}
    assert [fault.met for fault in proxy.faults] == [1] * len(losses)
    proxy.allowed = None


#: A job that tries to write elsewhere, each try in a line of its own; nothing it gets tells on it.
WRITES = """\
from lakehouse_backfill.transforms import transform

def tries(s):
    spark, into = s.sparkSession, "lake.silver.t"
    sql = getattr(spark, "s" + "ql")
    yield lambda: sql("INSERT " + f"INTO {into} SELECT * FROM lake.bronze.s")
    yield lambda: sql("DROP " + f"TABLE {into}")
    yield lambda: sql("CALL " + f"lake.system.expire_snapshots(table => '{into}')")
    yield lambda: getattr(s, "write" + "To")(into).append()
    yield lambda: getattr(s.write, "save" + "AsTable")("lake.silver.made")
    yield lambda: getattr(s.write, "insert" + "Into")(into)

@transform(name="writes", version="1.0.0", inputs=("s",))
def writes(context, s):
    for attempt in tries(s):
        try:
            attempt()
        except Exception:
            pass
    return s
"""


@pytest.mark.req("X1", "T6", "E1")
def test_a_job_writes_nowhere_through_the_session(lab: SparkRestLab, catalogs: Catalogs) -> None:
    lab.isolate("clone")
    manifest = lab.manifest("writes.yaml", DAYS[1], DAYS[3])
    file = lab.folder / manifest
    file.write_text(file.read_text("utf-8").replace("tenfold", "writes"), encoding="utf-8")
    (lab.folder / "jobs" / "writes.py").write_text(WRITES, encoding="utf-8")
    run = lab.must("plan", manifest, *BY).data["run_id"]
    lab.must("approve", run, *BY)
    before, asked = _live(lab), len(catalogs.proxy.asked)

    ended = lab.do("stage", run, *BY)

    assert ended.code == 3, ended
    tried = ended.error["data"]["attempts"]
    assert [(one["file"], one["line"], one["sink"]) for one in tried] == [
        ("jobs/writes.py", line, "table") for line in range(6, 12)
    ]
    assert _live(lab) == before
    changes = [path for method, path, _ in catalogs.proxy.asked[asked:] if method != "GET"]
    assert [path for path in changes if f"/{CONTROL}" not in path and "/oauth/" not in path] == []


def _live(lab: SparkRestLab) -> list[Any]:
    """Give each table that is not the toolkit's own, with the metadata file that is its state."""
    return [row for row in lab.oracle.catalog() if not str(row[1]).startswith(CONTROL)]


@pytest.mark.req("X1")
def test_no_secret_of_sparks_login_is_in_its_log_or_in_what_commands_write(
    lab: SparkRestLab, catalogs: Catalogs
) -> None:
    """Also where the catalog's answer to Spark's commit quotes the secret and the token."""
    proxy = catalogs.proxy
    run = lab.must("plan", lab.manifest("told.yaml", DAYS[5], DAYS[6]), *BY).data["run_id"]
    lab.must("approve", run, *BY)
    words = f"client_secret={SECRET} Bearer {proxy.issued[0]}"
    for status in (401, 500):
        answer = json.dumps({"error": {"message": words, "type": "F", "code": status}})
        fault = Fault("POST", catalog_rules.COMMITS, status=status, holds="chunk-id", answer=answer)
        proxy.faults = [fault]
        ended = lab.do("--debug", "stage", run, *BY)
        assert (ended.code in (2, 4, 5, 6), fault.met > 0) == (True, True), (status, ended)
    proxy.faults = []
    log = next(file for file in lab.said() if file.name == "spark.log")
    assert "ERROR" in log.read_text("utf-8")
    assert proxy.issued
    require_no_secret(
        lab, [part for one in (SECRET, *proxy.issued) for part in (one[:16], one[-8:])]
    )
