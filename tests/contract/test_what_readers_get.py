"""Status and verify of runs of every kind of publication, compared with what readers get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.lab import BY, TARGET, Lab
from tests.support.lakes.verified import verify

pytestmark = pytest.mark.req("O4", "E6")
#: What stands under `target:`, and whether the product is pinned.
KINDS = {
    "swap": ("", False),
    "steps": ("  progressive: {partitions_per_step: 1}\n", False),
    "events": (
        "  publish_mode: correction_events\n  corrections: {table: silver.t_corrections}\n",
        False,
    ),
    "pointer": ("  publish_mode: pointer_swap\n", True),
    "version": ("  publish_mode: versioned\n", True),
}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def published(lab: Lab, name: str, kind: str, days: tuple[str, str]) -> str:
    file = lab.manifest(name, *days)
    edit(lab.folder / file, "target:\n", "target:\n" + KINDS[kind][0])
    run: str = lab.must("plan", file, *BY).data["run_id"]
    for verb in ("approve", "stage", "validate", "accept", "publish"):
        lab.must(verb, run, *BY)
    return run


def stands(lab: Lab, run: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.must("status", run).data["runs"][0]
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_missed_or_invented_after_later_publications_and_rollbacks(
    kind: str, tmp_path: Path
) -> None:
    lab = Lab(tmp_path)
    lab.make()
    if KINDS[kind][1]:
        contract = next((lab.folder / "catalog" / "contracts").glob("*.yaml"))
        edit(contract, "consumers: []", "publication: pinned\nconsumers: []")
    first = published(lab, "a.yaml", kind, ("2024-01-02", "2024-01-04"))
    second = published(lab, "b.yaml", kind, ("2024-01-05", "2024-01-06"))
    for run in (first, second):
        lab.run = run
        found = stands(lab, run)
        assert found["is_safe"].startswith("yes: ")
        assert "; " not in found["readers_see"]
        assert verify(lab, "--deep").bad == {}
    lab.must("rollback", TARGET, "--reason", "not yet", *BY)
    assert stands(lab, first)["is_safe"].startswith("yes: ")
    found = stands(lab, second)
    assert found["is_safe"].startswith("yes: ")
    assert "; " not in found["readers_see"]
    for run in (first, second):
        lab.run = run
        assert verify(lab).bad == {}
