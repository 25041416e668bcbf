"""A file is damaged while a run is under way: commands name it, and go on once it is restored.

After a publication: test_damage_table.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.lab import BY, TARGET, Ended, Lab, tables_of
from tests.chaos.oracle import CONTROL

PUBLISH, RECOVER = ("publish", "RUN"), ("recover", "--all")
ROLLBACK = ("rollback", TARGET, "--to", "0", "--reason", "wrong")
#: A command in the state in which it reads the table, and its exit code when a file is damaged.
COMMANDS = {
    "target": [
        ("accepted", PUBLISH, 2),
        ("publishing cut off", RECOVER, 5),
    ],
    "shadow": [("accepted", PUBLISH, 2)],
    "accepted_output_version": [("published", ROLLBACK, 2), ("published", RECOVER, 2)],
}
KINDS = ("metadata", "manifest list", "manifest")
DAMAGES = ("garbage", "truncated", "absent")


@dataclass(frozen=True)
class Case:
    table: str
    state: str
    command: tuple[str, ...]
    code: int
    kind: str
    damage: str

    def __str__(self) -> str:
        return f"{' '.join(self.command)} - {self.kind} of {self.table} - {self.damage}"

    def works(self) -> dict[Any, Any]:
        return {self: self.run}

    def run(self, lab: Lab) -> tuple[str, Ended, list[Ended]]:
        """The damaged file, how the command ended, and how it ended once the file was restored."""
        lab.restore(self.state)
        file = next(_files(lab, self.table, self.kind))
        whole = file.read_bytes()
        if self.damage == "absent":
            file.unlink()
        else:
            file.write_bytes(b"garbage" * 50 if self.damage == "garbage" else whole[:-20])
        ended = lab.do(*_typed(lab, self.command))
        file.write_bytes(whole)
        after = [lab.do(*RECOVER, *BY), lab.do(*_typed(lab, self.command))]
        return file.name, ended, after


def _typed(lab: Lab, command: tuple[str, ...]) -> tuple[str, ...]:
    typed = lab.typed(command)
    return typed if command[0] in ("publish", "recover", "rollback") else typed[: -len(BY)]


def _files(lab: Lab, table: str, kind: str) -> Iterator[Path]:
    names = {"target": TARGET} | {
        "shadow": next((name for name in tables_of(lab) if "_shadow." in name), "")
    }
    with lab.opened() as catalog:
        loaded = catalog.load_table(names.get(table, f"{CONTROL}.{table}"))
        snapshot = loaded.current_snapshot()
        assert snapshot is not None
        found = {
            "metadata": [loaded.metadata_location],
            "manifest list": [snapshot.manifest_list],
            "manifest": [manifest.manifest_path for manifest in snapshot.manifests(loaded.io)],
        }[kind]
    return (Path(location.removeprefix("file://")) for location in found)


CASES = [
    Case(table, *command, kind, damage)
    for place, (table, commands) in enumerate(COMMANDS.items())
    for number, command in enumerate(commands)
    for kind_number, kind in enumerate(KINDS)
    for damage_number, damage in enumerate(DAMAGES)
    # Each pair of kind and damage for each table; not all of them for each command.
    if len(commands) == 1 or (place + number + kind_number + damage_number) % 2 == 0
]


@pytest.mark.req("X9", "T3")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_damaged_file_is_named_and_the_command_goes_on_once_it_is_restored(
    case: Case, outcomes: dict[Any, Any]
) -> None:
    name, ended, after = outcomes[case].result()
    assert ended.code == case.code, ended
    assert name in ended.said, ended
    assert "fix" in ended.error, ended
    recovered, again = after
    assert recovered.code == 0, after
    # Recovery may have finished what the command had begun.
    assert again.code == 0 or "is at version 0 already" in again.said, after
