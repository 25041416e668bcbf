"""Log lines carry the labels of their run, nest, and never hold a secret."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.system.journal import LOG_LABELS, JsonJournal, redact_value
from lakehouse_backfill.adapters.system.process import NullProgress, SystemClock
from lakehouse_backfill.errors import TooBusy
from lakehouse_backfill.ports.system import Clock, Journal, Progress

pytestmark = pytest.mark.req("O2")
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Noon:
    def now(self) -> datetime:
        return NOON


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / ".lakehouse-backfill/logs/2026-03-01.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_adapters_fit_their_ports(tmp_path: Path) -> None:
    journal: Journal = JsonJournal(tmp_path)
    clock: Clock = SystemClock()
    progress: Progress = NullProgress()
    progress.start("stage", 1, "chunks")
    progress.advance()
    progress.finish()
    assert clock.now().tzinfo is timezone.utc
    assert journal.bind(run_id="bf-1") is not journal


def test_a_line_has_every_label_and_what_was_bound(tmp_path: Path) -> None:
    journal = JsonJournal(tmp_path, Noon()).bind(run_id="bf-1", target="silver.a", product="a.b")
    journal.log("chunk staged", chunk_id="c1", rows=3)
    (line,) = lines(tmp_path)
    trace = line.pop("trace_id")
    assert len(trace) == 32
    assert line == {
        "at": "2026-03-01T12:00:00+00:00",
        "event": "chunk staged",
        "span_id": None,
        "parent_id": None,
        "seconds": None,
        "outcome": None,
        "run_id": "bf-1",
        "chunk_id": "c1",
        "source_range": None,
        "transform_version": None,
        "target": "silver.a",
        "processing_mode": "unknown",
        "product": "a.b",
        "rows": 3,
    }
    assert set(LOG_LABELS) <= line.keys()


def test_spans_nest_and_say_how_long_and_how_it_ended(tmp_path: Path) -> None:
    journal = JsonJournal(tmp_path, Noon()).bind(run_id="bf-1")

    def publish() -> None:
        with journal.span("publish"):
            with journal.span("adopt", version=3):
                journal.log("manifest written")
            raise TooBusy("others kept winning")

    with pytest.raises(TooBusy):
        publish()
    note, inner, outer = lines(tmp_path)
    assert (inner["event"], inner["outcome"], inner["version"]) == ("adopt", "ok", 3)
    assert (outer["event"], outer["outcome"]) == ("publish", "too-busy")
    assert outer["problem"] == "others kept winning"
    assert note["span_id"] == inner["span_id"]
    assert inner["parent_id"] == outer["span_id"]
    assert outer["parent_id"] is None
    assert outer["seconds"] >= inner["seconds"] >= 0
    assert note["seconds"] is None


def test_all_processes_of_a_run_write_one_trace(tmp_path: Path) -> None:
    for run in ("bf-1", "bf-1", "bf-2"):
        JsonJournal(tmp_path, Noon()).bind(run_id=run).log("moved")
    JsonJournal(tmp_path, Noon()).log("no run")
    traces = [line["trace_id"] for line in lines(tmp_path)]
    assert traces[0] == traces[1]
    assert len(set(traces)) == 3


def test_binding_does_not_change_the_journal_that_was_bound(tmp_path: Path) -> None:
    journal = JsonJournal(tmp_path, Noon())
    journal.bind(run_id="bf-1").log("bound")
    journal.log("not bound")
    assert [line["run_id"] for line in lines(tmp_path)] == ["bf-1", None]


def test_a_field_cannot_overwrite_what_the_journal_writes(tmp_path: Path) -> None:
    JsonJournal(tmp_path, Noon()).log("moved", at="never", outcome="mine")
    (line,) = lines(tmp_path)
    assert line["at"] == "2026-03-01T12:00:00+00:00"
    assert line["field_at"] == "never"
    assert line["field_outcome"] == "mine"


def test_a_record_trace_holds_key_old_and_new(tmp_path: Path) -> None:
    key = {"day": date(2013, 3, 1), "dest": "SJU"}
    old, new = {"delay": Decimal("1.50")}, {"delay": float("nan")}
    JsonJournal(tmp_path, Noon()).log("record_trace", key=key, old=old, new=new)
    (line,) = lines(tmp_path)
    assert line["key"] == {"day": "2013-03-01", "dest": "SJU"}
    assert line["old"] == {"delay": "1.50"}
    assert line["new"] == {"delay": "nan"}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"credential": "c:s"}, {"credential": "[hidden]"}),
        ({"s3.secret-access-key": "x"}, {"s3.secret-access-key": "[hidden]"}),
        ({"a": [{"Token": "x"}]}, {"a": [{"Token": "[hidden]"}]}),
        ({"DB_PASSWORD": 5}, {"DB_PASSWORD": "[hidden]"}),
        ({"password": None}, {"password": None}),
        ({"uri": "postgresql://ana:p@ss@db/x?a=1"}, {"uri": "postgresql://[hidden]@db/x?a=1"}),
        ({"u": "jdbc:x?a=1&password=p&b=2"}, {"u": "jdbc:x?a=1&password=[hidden]&b=2"}),
        ({"at": "https://host:8181/x"}, {"at": "https://host:8181/x"}),
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(given: dict[str, Any], written: object) -> None:
    assert redact_value(given) == written


def test_a_log_that_cannot_be_written_stops_nothing_and_is_told_once(tmp_path, capsys) -> None:
    (tmp_path / ".lakehouse-backfill").write_text("a file where the folder should be")
    journal = JsonJournal(tmp_path, Noon())
    journal.log("one")
    journal.bind(run_id="bf-1").log("two")
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_lines_of_many_writers_do_not_mix(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        journal = JsonJournal(tmp_path, Noon()).bind(writer=writer)
        for number in range(50):
            journal.log("x" * 200, number=number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(lines(tmp_path)) == 200
    path = tmp_path / ".lakehouse-backfill/logs/2026-03-01.jsonl"
    assert path.stat().st_mode & 0o007 == 0
