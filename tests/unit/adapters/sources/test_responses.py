"""The table of raw responses: of one source only."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.sources.api.client import ApiAnswer, ApiClient
from lakehouse_backfill.adapters.sources.api.config import ApiEndpoint
from lakehouse_backfill.adapters.sources.api.ledger import ResponseLedger, StoredPage
from lakehouse_backfill.adapters.sources.api.reader import ApiReader
from lakehouse_backfill.adapters.sources.api.spool import RequestSpool
from lakehouse_backfill.adapters.sources.files.formats import parse
from lakehouse_backfill.adapters.sources.formats import decode_json, exact_json, from_json_rows
from lakehouse_backfill.domain.sources.declaration import ApiSource, FileSource
from lakehouse_backfill.domain.sources.landings import LandingRequest, LandingState
from lakehouse_backfill.errors import ConfigError, RejectedInput, Unsupported


def test_a_table_of_another_source_takes_no_responses() -> None:
    landing = LandingState(
        landing_id="ld-1", source="orders", request=LandingRequest(),
        started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    )  # fmt: skip
    other = landing.model_copy(update={"source": "other"})
    tables: Any = SimpleNamespace(ensure=lambda _: None, state=lambda _: other)
    declared: Any = SimpleNamespace(table="bronze.orders_responses")
    with pytest.raises(Unsupported, match="is a table of the source other"):
        ResponseLedger(tables, declared).open(landing)


def test_numbers_of_a_record_keep_their_digits() -> None:
    record = {"a": Decimal("1.50"), "b": [Decimal("1E+2"), 2**63], "c": '"1.5"', "d": "é"}
    assert (
        exact_json(record)
        == '{"a": 1.50, "b": [1E+2, 9223372036854775808], "c": "\\"1.5\\"", "d": "é"}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        exact_json({"a": float("nan")})


@pytest.mark.parametrize("number", ["1e401", "-1e-401", "0e-999999999", "1e99999999999999999999"])
def test_a_number_without_end_is_no_json(number: str) -> None:
    with pytest.raises(ValueError, match="too large an exponent"):
        decode_json(f'{{"a": [{number}]}}')
    assert decode_json("[1e400, 5e-324, 0.0]") == [Decimal("1e400"), Decimal("5e-324"), 0]


def test_no_number_of_a_received_request_is_given_twice(tmp_path: Path) -> None:
    spool, at = RequestSpool(tmp_path), datetime(2026, 1, 1, tzinfo=timezone.utc)
    senders: list[threading.Thread] = []

    class Landed(int):
        """A request comes while this number is compared."""

        def __gt__(self, other: int) -> bool:
            senders.append(threading.Thread(target=spool.keep, args=("first", None, at)))
            senders[0].start()
            senders[0].join(0.2)
            return int(self) > other

    spool.number_after(Landed(0))
    senders[0].join()
    spool.keep("second", None, at)
    assert [one.body for one in spool.read(spool.waiting())] == ["first", "second"]
    spool.close()


def test_a_page_that_is_asked_for_again_is_none_of_those_that_are_landed() -> None:
    """Its answer can hold other records than the one that was lost."""
    declared = ApiSource(url="https://vendor.example/", id="id")
    source: Any = SimpleNamespace(api=declared, source="orders")
    answer = ApiAnswer(200, '[{"id": 1}]')
    ledger: Any = SimpleNamespace(
        pages=lambda: iter(()),
        store=lambda number, place, answer, _: StoredPage(number, place, answer.body),
    )
    client: Any = SimpleNamespace(get=lambda _: answer)
    clock: Any = SimpleNamespace(now=lambda: None)
    tables: Any = None
    reader = ApiReader(source, pa.schema([]), client, ledger, tables, clock)
    assert [page.number for page in reader.responses({"cursor": None}, committed=10)] == [11]


@pytest.mark.parametrize("number", ["1e-999999999", "-1.5E-9999"])
def test_a_decimal_of_which_arrow_dies_is_refused(number: str) -> None:
    own = pa.schema([("a", pa.decimal128(10, 2)), ("b", pa.string())])
    for value in (number, Decimal(number)):
        with pytest.raises(ValueError, match="a has a decimal with too large an exponent"):
            from_json_rows([{"a": value}], own)
    for kind, content in (
        ("csv", f"a,b\n1,x\n{number},y\n"),
        ("json", '{"a": "' + number + '", "b": ""}'),
    ):
        declared = FileSource(location="inbox", format=kind)
        with pytest.raises(RejectedInput):
            parse(declared, "f", content.encode(), own)
    # Only decimals count: the same text in another column is a text.
    assert from_json_rows([{"a": "1.5", "b": number}], own).to_pylist() == [
        {"a": Decimal("1.50"), "b": number}
    ]


def test_what_is_nested_too_deeply_to_be_written_again_is_no_json() -> None:
    deepest = "[" * 200 + "]" * 200
    assert exact_json({"a": decode_json(deepest)})
    for text in (f"[{deepest}]", f"[{deepest}]".encode()):
        with pytest.raises(ValueError, match="nested too deeply"):
            decode_json(text)
    assert len(decode_json("[" + "[]," * 300 + "{}]")) == 301


def test_an_address_that_is_none_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"api\.url is no web address") as refused:
        ApiEndpoint.open(ApiSource(url="ftp://ana:s3cret@vendor.example/?key=s3cret", id="id"))
    assert "s3cret" not in str(refused.value)


def test_a_pause_until_a_year_that_no_calendar_has_is_none() -> None:
    clock: Any = SimpleNamespace()
    client = ApiClient(ApiEndpoint.open(ApiSource(url="https://vendor.example/", id="id")), clock)
    until = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    answer: Any = SimpleNamespace(headers={"Retry-After": until})
    assert client._asked_pause_s(answer) is None
