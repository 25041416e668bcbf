"""Each command works with the rights on the catalog that docs/catalogs.md names, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.lab import BY, SCOPE
from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs
from tests.stack.rest_lab import BACK, RestLab, require_rolled_back
from tests.stack.servers import ROOT, Rest

PAGE = ROOT / "docs" / "catalogs.md"


def rights() -> dict[str, dict[str, frozenset[str]]]:
    """Read the page: the rights of each command, on a clone and on a branch."""
    section = PAGE.read_text("utf-8").partition("## Rights")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if "| `" in line]
    return {
        verb: {"clone": _words(clone), "branch": _words(branch)}
        for verbs, clone, branch in rows
        for verb in re.findall("`(.+?)`", verbs)
    }


def _words(cell: str) -> frozenset[str]:
    return frozenset(word.strip() for word in cell.split(",") if word.strip() != "none")


@pytest.mark.req("X12")
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
    needed: dict[str, frozenset[str]] = {}

    def give(*arguments: str) -> dict[str, object]:
        verb = arguments[0]
        proxy.allowed, proxy.used = rights().get(verb, {}).get(isolation), set()
        data = lab.must(*arguments).data
        needed[verb] = frozenset(proxy.used)
        return data

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
    other = str(give("plan", lab.manifest("b.yaml", SCOPE[0], "2024-01-04"), *BY)["run_id"])
    give("cancel", other, *BY)
    give("doctor")
    give("status", lab.run)
    give("maintain", *BY)
    allowed = {verb: cells[isolation] for verb, cells in rights().items()}
    # Shadows and branches are removed once their run is old.
    assert needed.pop("maintain") <= allowed.pop("maintain")
    assert needed == allowed
