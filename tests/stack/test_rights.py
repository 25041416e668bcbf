"""Each command works with the rights on the catalog that docs/catalogs.md names, and no others."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Kill, Skewed
from tests.chaos.lab import BY, SCOPE, TARGET, Ended, expected_rows
from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import Proxy
from tests.stack.rest_lab import BACK, RestLab, require_rolled_back
from tests.stack.servers import ROOT, Rest

WHY = ("--reason", "wrong")
PAGE = ROOT / "docs" / "catalogs.md"


def rights() -> dict[str, dict[str, frozenset[str]]]:
    """Read the page: the rights of each command, on a clone and on a branch."""
    section = PAGE.read_text("utf-8").partition("## Rights")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if "| `" in line]
    return {
        verb: {"clone": _words(row[1]), "branch": _words(row[2])}
        for row in rows
        if len(row) > 2  # Others say what the words mean.
        for verb in map("".join, re.findall(r"`(.+?)`( \(.+?\))?", row[0]))
    }


def _words(cell: str) -> frozenset[str]:
    return frozenset(word.strip() for word in cell.split(",") if word.strip() != "none")


#: Rows of the page that the life of a run asks for; `test_rights_of_repairs` takes the others.
OF_ONE_LIFE = frozenset({
    "plan", "approve", "stage", "validate", "accept", "publish", "rollback", "publish RUN RUN",
    "rollback PRODUCT PRODUCT", "status", "maintain", "cancel", "diff", "verify", "evidence",
    "doctor", "recover",
})  # fmt: skip
#: All runs are old then, and the shadows and pins of closed ones end.
LATER = Skewed(timedelta(days=400))
OTHER = "silver.u"


@dataclass
class Commands:
    """Gives each command with the rights of its row on the page; notes those that it needed."""

    lab: RestLab
    proxy: Proxy
    allowed: dict[str, frozenset[str]]
    needed: dict[str, frozenset[str]] = field(default_factory=dict)

    def give(self, *arguments: str, row: str = "", hook: Any = None) -> dict[str, Any]:
        ended = self._give(row or arguments[0], *arguments, hook=hook)
        assert ended.code == 0, (arguments, ended)
        return ended.data

    def _give(self, row: str, *arguments: str, hook: Any = None) -> Ended:
        self.proxy.allowed, self.proxy.used = self.allowed[row], set()
        ended = self.lab.do(*arguments, hook=hook)
        self.needed[row] = self.needed.get(row, frozenset()) | self.proxy.used
        return ended

    def plan(self, manifest: str) -> str:
        """Plan and approve a run with all rights; gives its id."""
        self.proxy.allowed = None
        run = str(self.lab.must("plan", manifest, *BY).data["run_id"])
        self.lab.must("approve", run, *BY)
        return run

    def free(self, *verbs: str) -> None:
        """Give commands about the lab's run with all rights."""
        self.proxy.allowed = None
        for verb in verbs:
            self.lab.must(verb, self.lab.run, *BY)

    def kill(self, *arguments: str, act: str) -> None:
        """Kill a command before its commit to the table, and its recovery after that; finish it."""
        self.proxy.allowed = None
        self.lab.killed(*arguments, hook=Kill("Publisher.swap:committing"))
        recover = ("recover", "--all", *BY)
        row, hook = f"recover (uncommitted {act})", Kill("Publisher.swap:committed")
        assert self._give(row, *recover, hook=hook).code == -signal.SIGKILL
        self.give(*recover, row=f"recover ({act})")
        self.needed[row] |= self.needed[f"recover ({act})"]  # as it would have gone on

    def give_for_both(self, run: str, other: str) -> None:
        """Publish two runs, and take their products back, each by one commit."""
        both, back = ("publish", run, other, *BY), ("rollback", TARGET, OTHER, *WHY, *BY)
        self.proxy.allowed = self.allowed["publish"]
        refused = self.lab.do(*both)
        assert (refused.code, self._rows()) == (2, [expected_rows()] * 2), refused
        assert "no right: transactions" in refused.said
        for command, row, restated in (
            (both, "publish RUN RUN", SCOPE), (back, "rollback PRODUCT PRODUCT", ())
        ):  # fmt: skip
            before = self._transactions()
            self.give(*command, row=row)
            assert self._rows() == [expected_rows(restated)] * 2
            assert self._transactions() == before + 1

    def _rows(self) -> list[list[tuple[str, int, int]]]:
        return [self.lab.oracle.rows(product) for product in (TARGET, OTHER)]

    def _transactions(self) -> int:
        return sum(path.endswith("/transactions/commit") for _, path, _ in self.proxy.asked)


@pytest.mark.req("X12", "U2")
@pytest.mark.parametrize("isolation", ["clone", "branch"])
def test_a_command_needs_these_rights_and_no_others(
    catalogs: Catalogs, rest: Rest, tmp_path: Path, isolation: str
):
    uri = catalogs.behind([])["uri"]
    name, proxy = uri.rpartition("/")[2], catalogs.proxy
    proxy.rights_of = catalog_rules.rights_of
    database = rest.folder / name / "rest.db"
    lab = RestLab(tmp_path, uri, {"uri": f"{rest.uri}/{name}"}, database, isolation)
    lab.make()
    allowed = {verb: cells[isolation] for verb, cells in rights().items()}
    commands = Commands(lab, proxy, allowed)
    give = commands.give

    manifest = lab.manifest("a.yaml", SCOPE[0], "2024-01-05")
    lab.run = str(give("plan", manifest, *BY)["run_id"])
    for verb in ("approve", "stage", "validate"):
        give(verb, lab.run, *BY)
    give("diff", lab.run)
    give("accept", lab.run, *BY)
    give("publish", lab.run, *BY)
    give("verify", lab.run)
    give("evidence", lab.run)
    give(*BACK)
    give("recover", lab.run, *BY)
    require_rolled_back(lab)
    unused = str(give("plan", lab.manifest("b.yaml", SCOPE[0], "2024-01-04"), *BY)["run_id"])
    give("cancel", unused, *BY)
    give("doctor")
    give("status", lab.run)
    other = str(give("plan", lab.add_product(OTHER), *BY)["run_id"])
    for verb in ("approve", "stage", "validate", "accept"):
        give(verb, other, *BY)
    commands.give_for_both(lab.run, other)
    retired = give("maintain", *BY, hook=LATER)["retired"]
    assert [one["kind"] for one in retired].count("shadow") == 2
    assert commands.needed == {row: allowed[row] for row in OF_ONE_LIFE}
