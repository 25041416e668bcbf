"""A newcomer who types the commands of the README, as they are printed, on a lake of their own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = "silver.orders"
DAYS = [date(2025, 12, 25) + timedelta(days=number) for number in range(45)]
#: Two orders a day: each with the day it was made and its amount.
ORDERS = {
    2 * number + half: (day, number + half) for number, day in enumerate(DAYS) for half in (0, 1)
}
RIGHT = {order: amount for order, (_, amount) in ORDERS.items()}
#: The product has a wrong rate in January.
WRONG = {order: amount * (100 if day.month == 1 else 1) for order, (day, amount) in ORDERS.items()}
TRANSFORM = """-- name: orders
-- version: 1.0.0
-- inputs: orders
SELECT order_id, order_date, amount FROM {orders}
"""
_ARROW = pa.schema(
    [pa.field("order_id", pa.int64()), ("order_date", pa.date32()), ("amount", pa.int64())]
)


def readme_lines() -> list[str]:
    """Give the lines of the README's steps for a table of one's own, as they are printed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("## Restate your own table\n")[1].split("```")[1]
    return block.strip("\n").splitlines()


def make_lake(catalog: Catalog) -> None:
    """Make orders of some weeks; the product has wrong amounts, its source the right ones."""
    for namespace, sums in (("bronze", RIGHT), ("silver", WRONG)):
        catalog.create_namespace_if_not_exists(namespace)
        schema = Schema(
            NestedField(1, "order_id", LongType(), required=False),
            NestedField(2, "order_date", DateType(), required=False),
            NestedField(3, "amount", LongType(), required=False),
        )
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "order_date"))
        table = catalog.create_table(f"{namespace}.orders", schema, partition_spec=spec)
        rows = [
            {"order_id": order, "order_date": day, "amount": sums[order]}
            for order, (day, _) in ORDERS.items()
        ]
        table.append(pa.Table.from_pylist(rows, schema=_ARROW))


def amounts(catalog: Catalog) -> dict[int, int]:
    """Read what consumers of the product see: the amount of each order."""
    rows = catalog.load_table(PRODUCT).scan().to_arrow().to_pylist()
    return {row["order_id"]: row["amount"] for row in rows}


def install_wheel(folder: Path) -> Path:
    """Build the wheel and install it into a new environment; return the folder of its programs.

    The packages that it needs are those of this environment, whose link to the clone is not read.
    """
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env")
    programs = folder / "env" / "bin"
    site = next((folder / "env" / "lib").glob("python3*/site-packages"))
    here = sysconfig.get_path("purelib")
    (site / "packages.pth").write_text(f"{here}\n", encoding="utf-8")
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--offline", "--no-deps"]
    wheel = str(next(folder.glob("*.whl")))
    subprocess.run(
        [*uv, "--cache-dir", str(folder / "cache"), "--python", str(programs / "python"), wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    return programs


#: Verbs whose commands the program has printed, complete but for a reason, before they are typed.
PRINTED = frozenset({"plan", "approve", "run", "accept", "publish", "rollback"})


def _verb(command: str) -> str:
    return re.sub(r"--(project|profile) \S+ ", "", command).split()[1]


class Newcomer:
    """A shell in a folder; `run` is the id that `plan` printed.

    `printed` holds, by its verb, each command that the program printed as the next.
    """

    def __init__(self, folder: Path, programs: Path, **variables: str) -> None:
        self.folder = folder
        self._place = folder / "place"
        self.run = ""
        self.printed: dict[str, str] = {}
        without = ("LAKEHOUSE_BACKFILL", "PYTHONPATH")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(without)}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        # Of jars in a folder of this test no later start would read the classes that are kept.
        kept["LAKEHOUSE_BACKFILL_CLASS_ARCHIVE"] = "off"
        self._env = {**kept, "PATH": path, "COLUMNS": "110", **variables}

    def type(self, line: str) -> str:
        """Type a line into bash, which stays in the folder that the line goes to."""
        asked = f"{line}\nstatus=$?; pwd > {shlex.quote(str(self._place))}; exit $status"
        done = subprocess.run(
            ["bash", "-c", asked], cwd=self.folder, env=self._env, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.folder = Path(self._place.read_text(encoding="utf-8").strip())
        for command in re.findall(r"^next:\n  (lakehouse-backfill .*)$", done.stdout, re.MULTILINE):
            self.printed[_verb(command)] = command
        return done.stdout

    def do_what_is_said(self, comment: str, profile: dict[str, object]) -> None:
        """Do what a comment of the README asks for in words."""
        if "name your catalog" in comment:
            self._name_the_catalog(profile)
        elif "write the transform" in comment:
            self._answer_the_drafts()

    def _name_the_catalog(self, profile: dict[str, object]) -> None:
        document = {"api_version": "lakehouse-backfill/v1", "default": "own",
                    "profiles": {"own": profile}}  # fmt: skip
        (self.folder / "catalog/profiles.yaml").write_text(yaml.safe_dump(document))

    def _answer_the_drafts(self) -> None:
        """Write the transform, and what the drafts of contract and manifest leave to people."""
        (self.folder / "jobs/orders/transform.sql").write_text(TRANSFORM, encoding="utf-8")
        contract = self.folder / f"catalog/contracts/{PRODUCT}.yaml"
        answers = "consumers: []\nclassification: internal\nretention_days: unlimited\n"
        contract.write_text(contract.read_text(encoding="utf-8") + answers, encoding="utf-8")
        manifest = next((self.folder / "jobs/orders").glob("restate-*.yaml"))
        declared = yaml.safe_load(manifest.read_text(encoding="utf-8"))
        declared["transform"] = {
            "name": "orders", "version": "1.0.0", "file": "jobs/orders/transform.sql",
        }  # fmt: skip
        declared["sources"] = {
            "orders": {
                "table": "bronze.orders",
                "range": {"column": "order_date", "from": DAYS[0], "to": DAYS[-1]},
            }
        }
        manifest.write_text(yaml.safe_dump(declared), encoding="utf-8")

    def follow(self, line: str) -> str:
        """Type a line of the README, or the command that was printed for it, with its reason."""
        reason = "".join(re.findall(r'--reason (".+?")', line))
        if _verb(line) in PRINTED:
            line = self.printed[_verb(line)].replace("TEXT", reason)
        shown = self.type(re.sub(r"\bRUN\b", self.run, line) if self.run else line)
        if " plan " in line:
            self.run = re.search(r"bf-[0-9a-f]{10}", shown)[0]  # type: ignore[index]
        return shown
