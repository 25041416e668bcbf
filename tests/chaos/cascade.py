"""A lab with six products that are computed from each other, with fan-out and fan-in."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from tests.chaos.crowd import _say_changes, catalog_of
from tests.chaos.lab import (
    _SCHEMA,
    _SPEC,
    BY,
    CONTRACT,
    DAYS,
    MANIFEST,
    PROFILES,
    SOURCE,
    Lab,
    _arrow,
)

ROOT = "silver.r"
#: Each product, and what it is the sum of.
INPUTS = {
    "silver.a": (ROOT,),
    "silver.b": (ROOT,),
    "silver.c": ("silver.a", "silver.b"),
    "silver.d": ("silver.c",),
    "silver.e": ("silver.a", "silver.c"),
}
PRODUCTS = (ROOT, *INPUTS)
#: How often the root's value is in that of each product.
TIMES = {ROOT: 1, "silver.a": 1, "silver.b": 1, "silver.c": 2, "silver.d": 2, "silver.e": 3}
SCOPE = DAYS[1:4]
TEMPLATE = """\
api_version: lakehouse-backfill/v1
run: {{requested_by: ana, reason: from upstream, reason_code: bug_fix}}
product: {product}
transform: {{name: summed, version: 1.0.0, file: jobs/summed.py}}
sources:
{sources}
target:
  publish_mode: {mode}
  partitions: {{column: d}}
limits: {{partitions_per_chunk: 1}}
validation: {{edge_partitions: 0}}
"""
_SOURCE = "  {name}: {{table: {table}, range: {{column: d, from: 2024-01-01, to: 2024-02-01}}}}"


class CascadeLab(Lab):
    """Six products; the root is made of a source."""

    #: The fault points that `run` passes.
    points: list[str]

    def make(self) -> None:
        files = {
            "catalog/profiles.yaml": PROFILES,
            "jobs/tenfold.py": "# See engine.py.\n",
            "jobs/summed.py": "# See engine.py.\n",
        }
        for product in PRODUCTS:
            files[f"catalog/contracts/{product}.yaml"] = self.contract(product)
            if product in INPUTS:
                files[f"jobs/{product}.yaml"] = template(product, INPUTS[product])
        for name, text in files.items():
            self.write(name, text)
        (self.folder / "lake").mkdir()
        catalog = self.catalog()
        for space in ("bronze", "silver"):
            catalog.create_namespace(space)
        for table, factor in ((SOURCE, 1), *((one, 100 * TIMES[one]) for one in PRODUCTS)):
            made = catalog.create_table(table, _SCHEMA, partition_spec=_SPEC)
            made.append(
                _arrow([(date.fromisoformat(d), k, k * factor) for d in DAYS for k in (1, 2)])
            )
        catalog.engine.dispose()
        text = MANIFEST.format(first=SCOPE[0], stop=DAYS[4]).replace("silver.t", ROOT)
        self.write(
            "jobs/r.yaml", text.replace("target:\n", "target:\n  publish_mode: pointer_swap\n")
        )

    def contract(self, product: str) -> str:
        """Write the contract of a product: pinned, with its upstreams."""
        text = CONTRACT.replace("silver.t", product)
        lines = "owner: ana\npublication: pinned\n"
        if product in INPUTS:
            upstreams = ", ".join(f"{{product: {one}}}" for one in INPUTS[product])
            lines += f"upstreams: [{upstreams}]\ncascade: {{manifest: jobs/{product}.yaml}}\n"
        return text.replace("owner: ana\n", lines)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def add_source_row(self, day: str, value: int) -> None:
        """Append a late row to the source."""
        catalog = self.catalog()
        catalog.load_table(SOURCE).append(_arrow([(date.fromisoformat(day), 3, value)]))
        catalog.engine.dispose()

    def plan(self) -> str:
        """Plan the cascade from the root; give its id."""
        return str(self.must("plan", "jobs/r.yaml", "--cascade", *BY).data["cascade_id"])

    def run_of(self, cascade: str) -> dict[str, str]:
        """Give the run of each product of a cascade."""
        members = self.must("status", cascade).data["members"]
        return {one["product"]: one["run_id"] for one in members if one["run_id"]}

    def seen(self) -> dict[str, dict[str, int]]:
        """Give what readers of all products get at one moment: the sum of each day."""
        return read_together(self.folder)


def template(product: str, tables: tuple[str, ...], mode: str = "pointer_swap") -> str:
    """Write the run manifest of a product without partitions."""
    sources = "\n".join(_SOURCE.format(name=one.rpartition(".")[2], table=one) for one in tables)
    return TEMPLATE.format(product=product, sources=sources, mode=mode)


def expected(factor: int) -> dict[str, dict[str, int]]:
    """Give what readers get when the root's values in the scope are so many times the source's."""
    return {
        product: {day: 3 * TIMES[product] * (factor if day in SCOPE else 100) for day in DAYS}
        for product in PRODUCTS
    }


def read_together(folder: Path) -> dict[str, dict[str, int]]:
    """Read all products by the pointers of one moment; before the first publication, the tables."""
    from lakehouse_backfill.errors import NotFound
    from lakehouse_backfill.project import Project

    found: dict[str, dict[str, int]] = {}
    try:
        tables = Project.open(folder).accepted_together(PRODUCTS)
    except NotFound:
        catalog = catalog_of(folder)
        tables = {one: catalog.load_table(one).scan().to_arrow() for one in PRODUCTS}
        catalog.engine.dispose()
    for product, table in tables.items():
        sums: dict[str, int] = {}
        for row in table.to_pylist():
            sums[str(row["d"])] = sums.get(str(row["d"]), 0) + row["v"]
        found[product] = sums
    return found


def read_all(folder: Path, say: Any, stop: Any) -> None:
    """Read all products again and again, as consumers do; say what is seen when it changes."""
    _say_changes(lambda: read_together(folder), say, stop)  # type: ignore[arg-type]
