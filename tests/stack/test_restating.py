"""A restatement end to end, forth and back, on catalogs that register no clone.

The program's own commands and adapters; Spark's part is played by the lab's engine. What readers
see is compared with what the rates of the example say, worked out here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog

from tests.chaos.lab import BY, DAYS, PROFILES, SCOPE, SOURCE, TARGET, Child, Lab, tables_of
from tests.stack.catalogs import Catalogs

WRONG, RIGHT = 100, 10
#: What `doctor` says about shadows there.
SAID = {
    "refusing": "built by create_table and one commit, as the catalog refuses to register a table",
    "seaweed": "built by create_table and one commit, as the catalog does not keep what is",
}


class ServerLab(Lab):
    """The lab's project on a catalog that a server keeps."""

    def __init__(self, root: Path, properties: dict[str, str]) -> None:
        super().__init__(root)
        self._properties = properties

    def start(self, *arguments: str, **fault: Any) -> Child:
        return super().start("--profile", "lab", *arguments, **fault)

    def profiles(self) -> str:
        declared: dict[str, Any] = yaml.safe_load(PROFILES)
        declared["profiles"]["lab"]["catalog"] = self._properties
        return yaml.safe_dump(declared)

    def catalog(self) -> Catalog:
        return load_catalog(**self._properties)


def expected(factors: dict[str, int]) -> list[tuple[str, int, int]]:
    """Give every row: amount k of a day, times that day's rate."""
    return [(day, k, k * factors.get(day, WRONG)) for day in DAYS for k in range(1, 4)]


def seen(lab: Lab) -> list[tuple[str, int, int]]:
    rows = lab.catalog().load_table(TARGET).scan().to_arrow().to_pylist()
    return sorted((str(row["d"]), row["k"], row["v"]) for row in rows)


@pytest.mark.req("U1", "U12", "X1")
@pytest.mark.parametrize("kind", list(SAID))
def test_a_restatement_goes_forth_and_back_where_no_clone_is_registered(
    kind: str, catalogs: Catalogs, tmp_path: Path
) -> None:
    lab = ServerLab(tmp_path, catalogs.make(kind))
    lab.make()
    assert (seen(lab), SOURCE in tables_of(lab)) == (expected({}), True)
    told = lab.do("doctor")
    assert "checks" in told.data, told.said
    checks = {one["name"]: one for one in told.data["checks"]}
    assert (checks["shadows"]["ok"], checks["shadows"]["detail"][: len(SAID[kind])]) == (
        True, SAID[kind],
    )  # fmt: skip
    manifest = lab.manifest("a.yaml", "2024-01-02", "2024-01-05")

    run = lab.must("plan", manifest, *BY).data["run_id"]
    for verb in ("approve", "stage", "validate", "accept"):
        lab.must(verb, run, *BY)
    assert seen(lab) == expected({})
    lab.must("publish", run, *BY)
    after = seen(lab)
    lab.must("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)

    assert after == expected(dict.fromkeys(SCOPE, RIGHT))
    assert seen(lab) == expected({})
