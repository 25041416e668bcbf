"""Sources that are APIs: windows, reconciliation, limits of the server, bad answers."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.sources.api.client import ApiClient
from lakehouse_backfill.adapters.sources.api.config import ApiEndpoint
from lakehouse_backfill.config.sources import find_source
from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, SourceDown
from lakehouse_backfill.project import Project
from tests.support.sources.api import SECRET, VARIABLE, ApiCase, Vendor, serving
from tests.support.sources.case import land, landed_rows, require_each_row_once
from tests.support.sources.files import trips


@pytest.fixture
def vendor(request: pytest.FixtureRequest) -> Iterator[Vendor]:
    made = Vendor(getattr(request, "param", "cursor"))
    with serving(made):
        yield made


def changes(case: ApiCase) -> list[tuple[Any, ...]]:
    return sorted(landed_rows(case, "sequence, id, change, city"))


class FrozenClock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 5, tzinfo=timezone.utc)
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.at += timedelta(seconds=seconds)


def client_of(folder: Path, vendor: Vendor, more: str = "") -> tuple[ApiClient, FrozenClock]:
    ApiCase(folder / "project", vendor, more)
    declared = find_source(folder / "project", "trips").api
    assert declared is not None
    clock = FrozenClock()
    return ApiClient(ApiEndpoint.open(declared), clock), clock


@pytest.mark.req("S5")
@pytest.mark.parametrize("vendor", ["window"], indirect=True)
def test_windows_are_landed_and_a_full_reading_finds_deletions_and_silent_corrections(
    vendor: Vendor, tmp_path: Path
) -> None:
    case = ApiCase(tmp_path / "project", vendor)
    case.deliver(trips(1, 8))
    with pytest.raises(ConfigError, match="needs its first instant"):
        land(case)
    assert land(case, from_="2026-01-01", to="2026-01-04").rows == 6
    assert {one["since"] for one in vendor.requests} == {
        f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)
    }
    # A later landing begins where the last one ended.
    assert land(case, to="2026-01-05").rows == 2
    require_each_row_once(case)
    assert Counter(row[2] for row in changes(case)) == {"insert": 8}
    with pytest.raises(ConfigError, match="--reconcile of an API with windows needs a whole range"):
        Project.open(case.project).land("trips", reconcile=True)
    vendor.records[0] |= {"city": "silently other"}
    vendor.records[1] |= {"city": "said", "version": 2}
    del vendor.records[3]
    del vendor.records[6]  # outside of the range that is read again
    first = Project.open(case.project).land("trips", "2026-01-01", "2026-01-03", reconcile=True)
    assert first.rows == 3
    assert changes(case)[8:] == [
        (9, 1, "correction", "silently other"), (10, 2, "update", "said"),
        (11, 4, "deletion", "city 1"),
    ]  # fmt: skip
    again = Project.open(case.project).land("trips", "2026-01-01", "2026-01-03", reconcile=True)
    assert again.rows == 0
    # A record that comes back is new again.
    vendor.records.append({**vendor.records[1], "id": 4, "day": "2026-01-02T12:00:00Z"})
    Project.open(case.project).land("trips", "2026-01-01", "2026-01-03", reconcile=True)
    assert changes(case)[11:] == [(12, 4, "insert", "said")]


@pytest.mark.req("S5")
def test_a_range_that_the_vendor_does_not_keep_is_refused(tmp_path: Path) -> None:
    vendor = Vendor("window")
    vendor.url = "http://127.0.0.1:9/none"
    case = ApiCase(tmp_path / "project", vendor, "  retention_days: 30\n")
    with pytest.raises(Blocked, match="the vendor keeps 30 days"):
        land(case, from_="2020-01-01", to="2020-02-01")


@pytest.mark.req("S5")
def test_pauses_that_the_server_asks_for_are_kept(vendor: Vendor, tmp_path: Path) -> None:
    client, clock = client_of(tmp_path, vendor)
    until = format_datetime(clock.at + timedelta(seconds=100), usegmt=True)
    reset = str(int((clock.at + timedelta(seconds=200)).timestamp()))
    vendor.faults = [
        (429, {"Retry-After": "7"}, ""),
        (503, {"Retry-After": until}, ""),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}, '{"first": 1}'),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "30"}, '{"second": 1}'),
    ]
    assert client.get({}).body == '{"first": 1}'
    assert clock.slept == [7, 93]
    assert client.get({}).body == '{"second": 1}'
    assert clock.slept == [7, 93, 100]
    client.get({})
    assert clock.slept == [7, 93, 100, 30]
    # At most the declared number of requests a second.
    client.get({})
    assert clock.slept[4:] == [0.001]
    vendor.faults = [(429, {"Retry-After": "100000"}, "")]
    with pytest.raises(SourceDown, match="asks for a pause of 100000 s; longest_wait_s is 900"):
        client.get({})


@pytest.mark.req("S5")
def test_whether_a_retry_helps_is_in_the_type_of_the_error_and_no_error_holds_the_secret(
    vendor: Vendor, tmp_path: Path
) -> None:
    client, clock = client_of(tmp_path, vendor, "  retries: 2\n")
    problems: list[BackfillError] = []
    for status, kind, requests in (
        (500, SourceDown, 3), (429, SourceDown, 3), (301, Blocked, 1), (403, Blocked, 1),
        (404, Blocked, 1), (400, Blocked, 1),
    ):  # fmt: skip
        vendor.faults = [(status, {"Location": "http://127.0.0.1:9/"}, "") for _ in range(requests)]
        seen = len(vendor.requests)
        with pytest.raises(kind, match=f"answers {status}") as caught:
            client.get({"cursor": "1"})
        assert len(vendor.requests) - seen == requests
        assert vendor.faults == []
        problems.append(caught.value)
    declared = find_source(tmp_path / "project", "trips").api
    assert declared is not None
    nobody = declared.model_copy(update={"url": "http://127.0.0.1:9/none"})
    with pytest.raises(SourceDown, match="no answer") as down:
        ApiClient(ApiEndpoint.open(nobody), clock).get({})
    problems.append(down.value)
    assert [one.retry_may_help for one in problems] == [True, True, *[False] * 4, True]
    assert SECRET not in "".join(map(str, problems)) + repr(ApiEndpoint.open(declared))


@pytest.mark.req("S5")
def test_a_response_is_stored_before_it_is_parsed_and_a_bad_one_is_asked_for_again(
    vendor: Vendor, tmp_path: Path
) -> None:
    case = ApiCase(tmp_path / "project", vendor)
    case.deliver(trips(1, 7))
    for body, problem in (
        ("<html>", "is no JSON"), ('{"data": {"items": {}}}', "is no list of records"),
        ('{"data": {"items": [{"city": "x"}]}}', "a record of response 2 has no id"),
    ):  # fmt: skip
        good = [(200, {}, "")] if problem == "is no JSON" else []
        vendor.faults = [*good, (200, {}, body)]
        with pytest.raises(Blocked, match=problem):
            land(case)
    table = Project.open(case.project).wiring.catalog.load_table("bronze.trips_responses")
    stored = table.scan(selected_fields=("page", "body")).to_arrow().to_pylist()
    assert Counter(row["page"] for row in stored) == {1: 1, 2: 3}
    assert "<html>" in {row["body"] for row in stored}
    asked = len(vendor.requests)
    done = land(case)
    assert (done.rows, done.resumed) == (7, True)
    # The first response is not asked for again; an empty one ends the feed.
    assert [one.get("cursor") for one in vendor.requests[asked:]] == ["2", "4", "6", "7"]
    require_each_row_once(case)
    case.require_settled()


def test_records_that_do_not_fit_are_landed_once_the_declaration_is_mended(
    vendor: Vendor, tmp_path: Path
) -> None:
    case = ApiCase(tmp_path / "project", vendor)
    case.deliver(trips(1, 2))
    vendor.records[0]["city"] = {"name": "secret"}
    with pytest.raises(Blocked, match="do not fit the declared columns") as caught:
        land(case)
    assert "secret" not in str(caught.value)
    declared = case.project / "catalog/sources/trips.yaml"
    text = declared.read_text().replace("  - {name: city, type: string}\n", "")
    declared.write_text(text.replace(VARIABLE, f"{VARIABLE}_2"))
    with pytest.raises(ConfigError, match=f"environment variable {VARIABLE}_2"):
        land(case)
    vendor.records[0]["city"] = "Rome"
    declared.write_text(text)
    asked = len(vendor.requests)
    assert land(case).rows == 2
    assert len(vendor.requests) == asked  # the stored response is parsed
    assert "name" in str(landed_rows(case, "record")[0])


def test_an_api_that_names_a_page_again_is_stopped(vendor: Vendor, tmp_path: Path) -> None:
    case = ApiCase(tmp_path / "project", vendor)
    for following in (["9", "9"], ["7", "8", "7"]):
        pages = [
            f'{{"data": {{"items": [{{"id": 1, "version": 1}}]}}, "meta": {{"next": "{one}"}}}}'
            for one in following
        ]
        vendor.faults = [(200, {}, page) for page in pages]
        with pytest.raises(Blocked, match="names the same page again"):
            land(case)
        assert vendor.faults == []


@pytest.mark.req("S5")
def test_records_that_the_vendor_mends_are_asked_for_again_and_kept_exactly(
    vendor: Vendor, tmp_path: Path
) -> None:
    case = ApiCase(tmp_path / "project", vendor)
    case.deliver(trips(1, 6))
    for wrong in ("secret", "\ud800"):
        vendor.records[2]["fare" if wrong == "secret" else "city"] = wrong
        with pytest.raises(Blocked, match="do not fit the declared columns") as caught:
            land(case)
        assert "secret" not in str(caught.value)
        vendor.records[2] |= {"fare": "0.75", "city": "city 0"}
    asked = len(vendor.requests)
    assert land(case).rows == 6
    # Of the responses that were stored, the first is kept; those behind the bad one are not.
    assert [one.get("cursor") for one in vendor.requests[asked:]] == ["2", "4", "6"]
    require_each_row_once(case)
    text = str(landed_rows(case, "record")[0][0])
    assert json.loads(text) == vendor.records[json.loads(text)["id"] - 1]


def test_an_answer_that_is_no_text_is_not_landed_with_other_characters(
    vendor: Vendor, tmp_path: Path
) -> None:
    client, clock = client_of(tmp_path, vendor, "  retries: 0\n")
    for kind in ("ascii", "no-such-encoding"):
        vendor.faults = [(200, {"Content-Type": f"text/json; charset={kind}"}, '"é"')]
        with pytest.raises(Blocked, match=f"is no text in '{kind}'"):
            client.get({})
    vendor.faults = [(200, {"Content-Encoding": "gzip"}, "no gzip")]
    with pytest.raises(SourceDown, match="no answer"):
        client.get({})
    # An answer counts, also when the next request has to wait for too long.
    vendor.faults = [(200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "5000"}, "{}")]
    assert client.get({}).body == "{}"
    with pytest.raises(SourceDown, match="asks for a pause of 5000 s"):
        client.get({})
    assert clock.slept == [0.001] * 3


@pytest.mark.req("S5")
def test_an_answer_above_the_limit_of_size_is_refused_also_when_it_is_compressed(
    vendor: Vendor, tmp_path: Path
) -> None:
    client, _ = client_of(tmp_path, vendor, "  max_response_mib: 1\n")
    limit = 1024 * 1024
    vendor.faults = [(200, {}, "1" * limit)]
    assert len(client.get({}).body) == limit
    vendor.faults = [(200, {}, "1" * (limit + 1))]
    with pytest.raises(Blocked, match="an answer is larger than max_response_mib: 1"):
        client.get({})
    packed = gzip.compress(b"1" * (limit + 1))
    vendor.faults = [(200, {"Content-Encoding": "gzip"}, packed)]
    with pytest.raises(Blocked, match="an answer is larger than max_response_mib: 1"):
        client.get({})


def test_a_secret_that_no_header_can_carry_is_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Vendor("export")
    vendor.url = "http://127.0.0.1:9/none?key=hidden"
    ApiCase(tmp_path / "project", vendor, "  retries: 0\n")
    declared = find_source(tmp_path / "project", "trips").api
    assert declared is not None
    with pytest.raises(SourceDown) as down:
        ApiClient(ApiEndpoint.open(declared), FrozenClock()).get({})
    assert "hidden" not in str(down.value)
    for secret in (f"{SECRET}\nX: y", f"{SECRET}é"):
        monkeypatch.setenv(VARIABLE, secret)
        with pytest.raises(ConfigError, match="a character that no header can carry") as caught:
            ApiEndpoint.open(declared)
        assert SECRET not in str(caught.value)
