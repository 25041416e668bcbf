"""What a driver holds does not grow with the chunks that it has staged."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.manifest import clear_manifest_cache

from tests.chaos.lab import BY, DAYS, Lab
from tests.support.quick_pyiceberg import forget_metadata

_WATCHED = ("lakehouse_backfill", "pyarrow", "pyiceberg", "sqlalchemy")
#: The row of a chunk in the ledger; its snapshot in metadata that is alive at the moment, and in
#: that which is kept parsed while a run stages.
_KEPT_OF_A_CHUNK = 3
_WARM_UP = 3


@dataclass
class CountObjects:
    """Notes after each chunk how many objects of each class are alive."""

    file: Path
    is_begun: bool = False

    def __call__(self, point: str) -> None:
        if not self.is_begun:
            self.is_begun = True
            forget_metadata()
        if point != "Runs.record_chunk:after":
            return
        clear_manifest_cache()  # of at most 128 manifests
        gc.collect()
        kinds = (type(one) for one in gc.get_objects())
        found = Counter(
            f"{kind.__module__}.{kind.__qualname__}"
            for kind in kinds
            if kind.__module__.split(".")[0] in _WATCHED
        )
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(found) + "\n")


def test_a_staged_chunk_leaves_its_ledger_row_and_little_else_in_memory(
    lab: Lab, tmp_path: Path
) -> None:
    lab.restore("new")
    run = str(lab.must("plan", lab.manifest("all.yaml", DAYS[0], "2024-01-09"), *BY).data["run_id"])
    lab.must("approve", run, *BY)
    noted = tmp_path / "noted"
    assert lab.do("stage", run, *BY, hook=CountObjects(noted)).code == 0
    alive = [json.loads(line) for line in noted.read_text(encoding="utf-8").splitlines()]
    assert len(alive) == len(DAYS)
    first, last = alive[_WARM_UP - 1], alive[-1]
    chunks = len(alive) - _WARM_UP
    grown = {name: count - first.get(name, 0) for name, count in last.items()}
    assert {n: more for n, more in grown.items() if more > chunks * _KEPT_OF_A_CHUNK} == {}
