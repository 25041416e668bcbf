"""Takes one lake through its life, in the process that all children are forked from, after `warm`.

What is worked out at first use is worked out once then: a command takes a sixth less. Threads and
connections stay with this process: each child starts and opens its own.
"""

from __future__ import annotations

import gc
import io
import json
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from lakehouse_backfill import fault_points
from tests.chaos import worker
from tests.chaos.lab import BY, TARGET, Lab


def _live(folder: Path) -> None:
    """Restate three days and roll them back."""
    lab = Lab(folder)
    lab.make()
    run = _do(lab, "plan", lab.manifest("a.yaml", "2024-01-02", "2024-01-05"))["run_id"]
    for verb in ("approve", "stage", "validate", "accept", "publish", "recover"):
        _do(lab, verb, run)
    _do(lab, "rollback", TARGET, "--to", "0", "--reason", "wrong")
    # Children have committed nothing yet.
    fault_points.forget_commits()


def _do(lab: Lab, *command: str) -> dict[str, str]:
    with redirect_stdout(io.StringIO()) as said:
        code = worker.exit_code((*command, *BY), lab.folder)
    assert code == 0, said.getvalue()
    found: dict[str, str] = json.loads(said.getvalue().splitlines()[-1])["data"]
    return found


with tempfile.TemporaryDirectory() as _folder:
    _live(Path(_folder))
gc.collect()
gc.freeze()
