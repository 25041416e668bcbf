"""Repairs, other engines and other ways in need the rights on the page, and no others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lakehouse_backfill.adapters.iceberg.schema import create_table
from tests.chaos.lab import BY, CONTRACT, DAYS, SCOPE, TARGET, expected_rows
from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs
from tests.stack.rest_lab import BACK, RestLab, require_rolled_back
from tests.stack.servers import Rest
from tests.stack.test_rights import OF_ONE_LIFE, Commands, rights
from tests.support.sources import events, files, migration

NEW = "silver.n"


def commands_of(
    catalogs: Catalogs, rest: Rest, folder: Path, isolation: str, rows: frozenset[str]
) -> Commands:
    """Make the lab's project behind a proxy that knows these rows of the page."""
    uri = catalogs.behind([])["uri"]
    name = uri.rpartition("/")[2]
    catalogs.proxy.rights_of = catalog_rules.rights_of
    database = rest.folder / name / "rest.db"
    lab = RestLab(folder, uri, {"uri": f"{rest.uri}/{name}"}, database, isolation)
    lab.make()
    allowed = {row: cells[isolation] for row, cells in rights().items() if row in rows}
    assert allowed.keys() == rows
    return Commands(lab, catalogs.proxy, allowed)


#: Rows of commands about runs, each on a clone and on a branch.
OF_RUNS = frozenset({
    "pause", "unpause", "shadow open", "shadow close", "stage (new table)", "publish (new table)",
    "rollback (rewrites)", "recover (publication)", "recover (rollback)",
    "recover (uncommitted publication)", "recover (uncommitted rollback)",
})  # fmt: skip


@pytest.mark.req("X12", "U2")
@pytest.mark.parametrize("isolation", ["clone", "branch"])
def test_repairs_and_other_engines_need_these_rights_and_no_others(
    catalogs: Catalogs, rest: Rest, tmp_path: Path, isolation: str
) -> None:
    commands = commands_of(catalogs, rest, tmp_path, isolation, OF_RUNS)
    lab, give = commands.lab, commands.give
    lab.run = commands.plan(lab.manifest("a.yaml", SCOPE[0], "2024-01-05"))
    give("pause", lab.run, "--reason", "late", *BY)
    give("unpause", lab.run, *BY)
    commands.free("stage", "validate", "accept")
    commands.kill("publish", lab.run, *BY, act="publication")
    commands.kill(*BACK, act="rollback")
    require_rolled_back(lab)

    text = _text(lab, lab.manifest("b.yaml", DAYS[5], "2024-01-07"))
    lab.run = commands.plan(_written(lab, text.replace("1.0.0,", "1.0.0, writer: external,")))
    opened = give("shadow", "open", lab.run, *BY, row="shadow open")
    _write(lab, opened["table"], DAYS[5])
    give("shadow", "close", lab.run, *BY, row="shadow close")
    commands.free("validate", "accept", "publish")
    assert lab.oracle.rows(TARGET) == expected_rows((DAYS[5],))
    _drop_tags(lab)
    give("rollback", TARGET, "--reason", "wrong", *BY, row="rollback (rewrites)")
    assert lab.oracle.rows(TARGET) == expected_rows()

    contract = lab.folder / "catalog" / "contracts" / f"{NEW}.yaml"
    contract.write_text(CONTRACT.replace(TARGET, NEW), encoding="utf-8")
    lab.run = commands.plan(_written(lab, text.replace(TARGET, NEW)))
    give("stage", lab.run, *BY, row="stage (new table)")
    commands.free("validate", "accept")
    give("publish", lab.run, *BY, row="publish (new table)")
    assert lab.oracle.rows(NEW) == [(DAYS[5], k, k * 10) for k in (1, 2, 3)]
    assert commands.needed == commands.allowed


def _text(lab: RestLab, manifest: str) -> str:
    return (lab.folder / manifest).read_text("utf-8")


def _written(lab: RestLab, text: str) -> str:
    (lab.folder / "jobs" / "c.yaml").write_text(text, encoding="utf-8")
    return "jobs/c.yaml"


def _write(lab: RestLab, place: str, day: str) -> None:
    """Write the right rows of a day as another engine does, on the clone or on the branch."""
    name, _, branch = place.replace("`", "").partition(".branch_")
    table = lab.catalog().load_table(name)
    old = table.scan(f"d = '{day}'").to_arrow()
    amounts = pa.array([v // 10 for v in old["v"].to_pylist()], pa.int64())
    table.overwrite(
        old.set_column(2, old.field("v"), amounts), f"d = '{day}'", branch=branch or "main"
    )


def _drop_tags(lab: RestLab) -> None:
    """Do what a catalog does that keeps no tags."""
    table = lab.catalog().load_table(TARGET)
    with table.manage_snapshots() as changes:
        for name, ref in table.metadata.refs.items():
            if ref.snapshot_ref_type == "tag":
                changes.remove_tag(name)


#: Rows of commands that make tables beside the runs; isolation changes nothing for these.
WAYS_IN = frozenset({
    "land", "land (new table)", "replay", "replay (new table)", "product migrate",
    "product migrate --undo",
})  # fmt: skip


def test_each_row_of_the_page_is_tested() -> None:
    assert rights().keys() == OF_ONE_LIFE | OF_RUNS | WAYS_IN


@pytest.mark.req("X12", "U2")
def test_ways_into_the_lake_need_these_rights_and_no_others(
    catalogs: Catalogs, rest: Rest, tmp_path: Path
) -> None:
    commands = commands_of(catalogs, rest, tmp_path, "clone", WAYS_IN)
    assert {
        row: cells["branch"] for row, cells in rights().items() if row in WAYS_IN
    } == commands.allowed
    lab, give = commands.lab, commands.give
    for folder in ("sources", "events", "migrations"):
        (lab.folder / "catalog" / folder).mkdir()
    _declare(lab)
    for number, row in enumerate(("land (new table)", "land")):
        text = f"id,city,fare\n{number},Rome,2.50\n"
        (lab.folder / "inbox" / f"{number}.csv").write_text(text, encoding="utf-8")
        give("land", "trips", row=row)
    assert len(lab.catalog().load_table("bronze.trips").scan().to_arrow()) == 2
    for number, row in enumerate(("replay (new table)", "replay"), start=1):
        _append_event(lab, number)
        assert give("replay", "orders", "--handler", "counts", row=row)["done"] == 1
    give("product", "migrate", "trips", *BY, row="product migrate")
    assert len(lab.catalog().load_table("silver.trips").scan().to_arrow()) == 1
    give("product", "migrate", "trips", "--undo", *BY, row="product migrate --undo")
    assert commands.needed == commands.allowed


def _declare(lab: RestLab) -> None:
    """Declare a source of files, an event store, and a migration of a Parquet file."""
    texts = {
        "catalog/sources/trips.yaml": files.DECLARATION.format(format="csv", more=""),
        "catalog/events/orders.yaml": events.DECLARATION,
        "catalog/migrations/trips.yaml": migration.DECLARATION.format(more=""),
        "catalog/contracts/silver.trips.yaml": migration.CONTRACT.format(
            partitioning="[{column: day}]"
        ),
        "handlers/money.py": events.HANDLERS,
    }
    old = lab.folder / "old" / "trips" / "day=2024-01-01"
    for folder in (lab.folder / "handlers", lab.folder / "inbox", old):
        folder.mkdir(parents=True)
    for name, text in texts.items():
        (lab.folder / name).write_text(text, encoding="utf-8")
    pq.write_table(pa.Table.from_pylist([migration.trip(1)], migration.NEWEST), old / "a.parquet")
    create_table(lab.catalog(), events.contract_of())


def _append_event(lab: RestLab, number: int) -> None:
    table = lab.catalog().load_table("bronze.order_events")
    row = events.Made(f"e{number}", "A", number).row()
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
