"""A vendor's HTTP API on this machine, whose records the tests know; it can misbehave."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.sources.case import Row, new_project

SECRET = "s3cret-of-the-vendor"
VARIABLE = "TRIPS_API_SECRET"
PAGING = {
    "cursor": "{by: cursor, parameter: cursor, next: meta.next, continues: true}",
    "whole": "{by: cursor, parameter: cursor, next: meta.next}",
    "window": "{by: window, from: since, to: until, column: day, hours: 24, "
    "cursor: cursor, next: meta.next}",
    "id_range": "{by: id_range, parameter: after}",
    "export": "null",
}
DECLARATION = """\
api_version: lakehouse-backfill/v1
source: trips
kind: api
table: bronze.trips
columns:
  - {{name: id, type: long, required: true}}
  - {{name: city, type: string}}
  - {{name: fare, type: "decimal(10, 2)"}}
  - {{name: day, type: timestamptz}}
api:
  url: {url}
  records: data.items
  id: id
  version: version
  paging: {paging}
  credentials: {{env: {variable}}}
  requests_per_second: 1000
  pages_per_commit: 2
{more}"""

_NOTHING: str | bytes = ""


class Vendor:
    """Records, pages of two, and answers that come before the right one."""

    page_size = 2

    def __init__(self, paging: str) -> None:
        self.paging = paging
        self.records: list[dict[str, Any]] = []
        #: Answers that are given before the right ones: status, headers, body.
        self.faults: list[tuple[int, dict[str, str], str | bytes]] = []
        self.requests: list[dict[str, str]] = []
        self.url = ""

    def answer(self, asked: dict[str, str]) -> dict[str, Any]:
        """Return the page that is asked for."""
        if self.paging == "id_range":
            found = [one for one in self.records if one["id"] > int(asked["after"])]
            return {"data": {"items": found[: self.page_size]}}
        found = self.records
        if self.paging == "window":
            found = [one for one in found if asked["since"] <= one["day"] < asked["until"]]
        if self.paging == "export":
            return {"data": {"items": found}}
        start = int(asked.get("cursor", "0"))
        page = found[start : start + self.page_size]
        has_more = start + len(page) < len(found)
        following = start + len(page) if has_more or self.paging == "cursor" else None
        return {"data": {"items": page}, "meta": {"next": following}}


@contextmanager
def serving(vendor: Vendor) -> Iterator[None]:
    """Serve on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {name: one[0] for name, one in parse_qs(urlsplit(self.path).query).items()}
            vendor.requests.append(asked)
            status, headers, body = 200, dict[str, str](), _NOTHING
            if self.headers["Authorization"] != f"Bearer {SECRET}":
                status = 401
            elif vendor.faults:
                status, headers, body = vendor.faults.pop(0)
            text = body or json.dumps(vendor.answer(asked) if status == 200 else {})
            content = text if isinstance(text, bytes) else text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    vendor.url = f"http://127.0.0.1:{server.server_port}/v1/trips"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class ApiCase:
    """A project whose source is the vendor's API."""

    name, table = "trips", "bronze.trips"

    def __init__(self, folder: Path, vendor: Vendor, more: str = "") -> None:
        os.environ[VARIABLE] = SECRET
        self.project = new_project(folder)
        self.vendor = vendor
        text = DECLARATION.format(
            url=vendor.url, paging=PAGING[vendor.paging], variable=VARIABLE, more=more
        )
        (folder / "catalog/sources/trips.yaml").write_text(text)
        self._records: list[Row] = []

    def deliver(self, records: Sequence[Row]) -> None:
        """Let the vendor have further records, two on each day."""
        for row in records:
            day = f"2026-01-{(row['id'] - 1) // 2 % 28 + 1:02d}T12:00:00Z"
            fields = {**row, "fare": str(row["fare"]), "day": day, "version": 1, "more": [1.5]}
            self.vendor.records.append(fields)
        self._records += records

    def expected(self) -> list[Row]:
        """Return what must have been landed."""
        return self._records

    def require_settled(self) -> None:
        """Check that the stored responses hold no secret, and each page once."""
        everything = b"".join(
            path.read_bytes() for path in self.project.rglob("*") if path.is_file()
        )
        assert SECRET.encode() not in everything
