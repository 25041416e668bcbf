"""Damage to a lake on which one run is published and another accepted, and what commands say then.

python -m tests.chaos.damages: writes the table of docs/recovery.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.control.schemas import CONTROL_TABLES
from tests.chaos.lab import BY, TARGET, Ended, Lab
from tests.chaos.oracle import CONTROL

DAY = "2024-01-03"
#: The state of the lab: RUN is published, SECOND is accepted.
STATE = "published and accepted"
COMMANDS = {
    "status": ("status", "RUN"),
    "verify": ("verify", "RUN"),
    "verify --deep": ("verify", "RUN", "--deep"),
    "audit verify": ("audit", "verify"),
    "publish": ("publish", "SECOND", *BY),
    "rollback": ("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY),
    "recover --all": ("recover", "--all", *BY),
}
WRITING = ("publish", "rollback", "recover --all")


@dataclass(frozen=True)
class Done:
    """A damage that was done: texts of which a command names one, and how it is mended."""

    names: tuple[str, ...]
    mend: Callable[[Lab], None] | None = None


@dataclass(frozen=True)
class Damage:
    """What somebody does to the lake; `name` stands in the table."""

    name: str
    do: Callable[[Lab], Done]
    #: Whether it is done to the run that is to be published, which commands are about then.
    is_of_second: bool = False

    def __str__(self) -> str:
        return self.name

    def works(self) -> dict[Any, Any]:
        return {self: self.run}

    def run(self, lab: Lab) -> dict[str, Cell]:
        """Give each command on the damaged lake, and the first that is refused to write again.

        That is once the damage is mended, after a recovery.
        """
        lab.restore(STATE)
        done = self.do(lab)
        lab.save("damaged")
        cells: dict[str, Cell] = {}
        runs = {"RUN": lab.second if self.is_of_second else lab.run, "SECOND": lab.second}
        for name, words in COMMANDS.items():
            typed = [runs.get(word, word) for word in words]
            ended, after = lab.do(*typed), []
            if name in WRITING:
                is_first = not any(cell.after for cell in cells.values())
                if ended.code and done.mend is not None and is_first:
                    done.mend(lab)
                    after = [lab.do("recover", "--all", *BY), lab.do(*typed)]
                lab.restore("damaged")
            is_named = any(text in ended.said for text in done.names)
            cells[name] = Cell(ended, tuple(after), is_named=is_named)
        lab.forget("damaged")
        return cells


@dataclass(frozen=True)
class Cell:
    """How a command ended on a damaged lake, and how the same went on once it was mended."""

    ended: Ended
    after: tuple[Ended, ...]
    is_named: bool

    @property
    def text(self) -> str:
        if self.ended.code:
            return f"named, exit {self.ended.code}" if self.is_named else f"exit {self.ended.code}"
        return "named, exit 0" if self.is_named else "goes on"


def _live(change: Callable[[Table], None], *names: str) -> Callable[[Lab], Done]:
    def do(lab: Lab) -> Done:
        with lab.opened() as catalog:
            change(catalog.load_table(TARGET))
        return Done(names)

    return do


def _other_rows(table: Table) -> None:
    rows = table.scan(f"d = '{DAY}'").to_arrow()
    sevens = pa.array([7] * len(rows), pa.int64())
    table.overwrite(rows.set_column(2, rows.schema.field(2), sevens), f"d = '{DAY}'")


def _no_rows(table: Table) -> None:
    table.delete(f"d = '{DAY}'")


def _set_back(table: Table) -> None:
    first = table.metadata.snapshot_log[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(first).commit()


def _dropped(name: str) -> Callable[[Lab], Done]:
    def do(lab: Lab) -> Done:
        with lab.opened() as catalog:
            where = catalog.load_table((CONTROL, name)).metadata_location
            catalog.drop_table((CONTROL, name))
        return Done((f"{CONTROL}.{name} is gone",), partial(_register, name=name, where=where))

    return do


def _register(lab: Lab, name: str, where: str) -> None:
    with lab.opened() as catalog:
        assert not catalog.table_exists((CONTROL, name))
        catalog.register_table((CONTROL, name), where)


def edit_pointer(lab: Lab, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Edit the property that is the product's pointer, or remove it (None)."""
    with lab.opened() as catalog:
        key = f"pointer.{TARGET}"
        table = catalog.load_table(f"{CONTROL}.accepted_output_version")
        edited = edit(json.loads(table.properties[key]))
        with table.transaction() as change:
            if edited is None:
                change.remove_properties(key)
            else:
                change.set_properties({key: json.dumps(edited)})


def _pointer(edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Lab], Done]:
    def do(lab: Lab) -> Done:
        edit_pointer(lab, edit)
        return Done(("pointer",), lambda _: None)

    return do


def _row(table: str, column: str, value: Any, *names: str) -> Callable[[Lab], Done]:
    """Edit the newest row of a run, the published one if it has any: no commit tells of it."""

    def do(lab: Lab) -> Done:
        run = lab.second if table == "reject_record" else lab.run
        for path in _files(lab, f"{CONTROL}.{table}", "data file"):
            held = pq.read_table(path)
            rows = held.to_pylist()
            mine = [row for row in rows if row["run_id"] == run]
            if mine:
                whole = path.read_bytes()
                row = mine[-1]
                row[column] = value(row[column]) if callable(value) else value
                pq.write_table(pa.Table.from_pylist(rows, held.schema), path)
                return Done(names, partial(_write_back, path=path, content=whole))
        raise AssertionError(table)

    return do


def _file(table: str, kind: str, damage: str) -> Callable[[Lab], Done]:
    def do(lab: Lab) -> Done:
        file = next(_files(lab, table, kind))
        whole = file.read_bytes()
        if damage == "absent":
            file.unlink()
        else:
            file.write_bytes(b"garbage" * 50 if damage == "garbage" else whole[:-20])
        return Done((file.name,), partial(_write_back, path=file, content=whole))

    return do


def _write_back(_: Lab, path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _files(lab: Lab, table: str, kind: str) -> Iterator[Path]:
    with lab.opened() as catalog:
        loaded = catalog.load_table(table)
        snapshot = loaded.current_snapshot()
        assert snapshot is not None
        scan = loaded.scan(f"d = '{DAY}'") if table == TARGET else loaded.scan()
        found = {
            "data file": lambda: [task.file.file_path for task in scan.plan_files()],
            "metadata file": lambda: [loaded.metadata_location],
            "manifest list": lambda: [snapshot.manifest_list],
            "manifest": lambda: [one.manifest_path for one in snapshot.manifests(loaded.io)],
        }[kind]()
    return (Path(location.removeprefix("file://")) for location in found)


#: Columns without which nothing could be laundered, and what a command says of the edit.
_ROWS: tuple[tuple[str, str, Any, str], ...] = (
    ("pipeline_run", "plan", lambda text: text.replace("wrong", "right"), "the plan of"),
    ("run_event", "actor", "mallory", "was edited"),
    ("backfill_chunk_run", "output_rows", 99, "rows of backfill_chunk_run differ"),
    ("evidence", "document", lambda text: text.replace("1", "2"), "was edited"),
    ("accepted_output_version", "acted_by", "mallory", "version 1"),
    ("pin_lease", "owner", "mallory", "pin_lease"),
    ("file_fingerprint", "sha256", "0" * 64, "fingerprints"),
)
DAMAGES = (
    Damage("another writer overwrote a published partition", _live(_other_rows, DAY)),
    Damage("another writer deleted a published partition", _live(_no_rows, DAY)),
    Damage("somebody set the main branch back", _live(_set_back, "main branch was set back")),
    *(Damage(f"`{one.name}` was dropped", _dropped(one.name)) for one in CONTROL_TABLES),
    Damage("the pointer names another snapshot", _pointer(
        lambda held: held | {"accepted": held["accepted"] | {"snapshot_id": 7}})),
    Damage("the pointer names another version", _pointer(
        lambda held: held | {"accepted": held["accepted"] | {"version": 5}})),
    Damage("the pointer was removed", _pointer(lambda _: None)),
    *(
        Damage(f"a row of `{table}` was edited", _row(table, column, value, *names))
        for table, column, value, *names in _ROWS
    ),
    Damage(
        "a row of `reject_record` was edited, of the run to publish",
        _row("reject_record", "reason", "no reason", "reject_record, chunk c"),
        is_of_second=True,
    ),
    *(
        Damage(f"a {kind} of {what} is {damage}", _file(table, kind, damage))
        for table, what in ((TARGET, "the table"), (f"{CONTROL}.run_event", "`run_event`"))
        for kind in ("data file", "manifest", "manifest list", "metadata file")
        for damage in ("garbage", "truncated", "absent")
    ),
)  # fmt: skip


def prepare(lab: Lab) -> None:
    """Save the state that the damages are done to; the lab stands after its run's publication."""
    manifest = lab.manifest("second.yaml", "2024-01-05", "2024-01-06")
    with (lab.folder / manifest).open("a", encoding="utf-8") as file:
        file.write("safety: {max_rejected_share: 0.5}\n")  # The lab's engine rejects a row then.
    second = lab.must("plan", manifest, *BY)
    lab.second = second.data["run_id"]
    for verb in ("approve", "stage", "validate", "accept"):
        lab.must(verb, lab.second, *BY)
    lab.save(STATE)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "recovery.md"
HEADER = (
    f"| damage | {' | '.join(f'`{name}`' for name in COMMANDS)} |",
    "|" + "---|" * (1 + len(COMMANDS)),
)


def table_row(damage: Damage, cells: dict[str, Cell]) -> str:
    """Return the damage's row of the table."""
    return f"| {damage.name} | {' | '.join(cell.text for cell in cells.values())} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        lab.make()
        lab.run = lab.must("plan", lab.manifest("a.yaml", "2024-01-02", "2024-01-05"), *BY).data[
            "run_id"
        ]
        for verb in ("approve", "stage", "validate", "accept", "publish"):
            lab.must(verb, lab.run, *BY)
        prepare(lab)
        rows = [table_row(damage, damage.run(lab)) for damage in DAMAGES]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(f"{HEADER[0]}\n")
    after = rest.partition("\n\n")[2]
    PAGE.write_text("\n".join([before + HEADER[0], HEADER[1], *rows, "", after]), encoding="utf-8")


if __name__ == "__main__":
    main()
