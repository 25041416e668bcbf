"""What a job sends to workers is guarded before it is unpickled there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.spark.guarded import FILE, try_lines

#: What an object in the closure of a function makes when it is unpickled, and the sink.
REDUCED = {
    "a socket": ("__import__('socket').create_connection, (('127.0.0.1', {port}),)", "network"),
    "a file": ("open, ('{folder}/a', 'w')", "file"),
    "a command": ("__import__('os').system, ('touch {folder}/b',)", "process"),
    "an import": ("__import__, ('duckdb',)", "table"),
    "an import by name": (
        "__import__('importlib').import_module, ('pyarrow.parquet',)", "file",
    ),
    "executed text": ("eval, (\"__import__('sqlite3').connect('{folder}/c')\",)", "database"),
}  # fmt: skip


@pytest.mark.req("E1", "T6")
def test_an_object_that_acts_when_it_is_unpickled_is_stopped(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        made = "type('C', (), {'__reduce__': lambda self: (%s)})()"
        lines = [
            f"(held={made % text.format(port=port, folder=outside)}): return held"
            for text, _ in REDUCED.values()
        ]
        found = try_lines(tmp_path / "project", lines, in_worker=True)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert [one.sinks for one in found] == [{sink} for _, sink in REDUCED.values()]
    assert [one.places[0] for one in found] == [(FILE, n) for n in range(1, len(found) + 1)]
    assert list(outside.iterdir()) == []
