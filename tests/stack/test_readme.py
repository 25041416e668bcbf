"""The commands of the README restate a table of one's own, from a wheel in a new environment.

Where the program has printed the next command, exactly that one is typed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from lakehouse_backfill.command_lines import PROFILE_VARIABLE
from tests.stack.catalogs import Catalogs
from tests.stack.servers import TOOLS
from tests.support.newcomer import (
    RIGHT,
    ROOT,
    WRONG,
    Newcomer,
    amounts,
    install_wheel,
    make_lake,
    readme_lines,
)

#: Commands about the run that the one before prints as the next.
CHAIN = ("approve", "run", "accept", "publish")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


def jars_with_driver(folder: Path) -> Path:
    """Put the jars of the set-up and PostgreSQL's driver into one folder: no network is used."""
    folder.mkdir()
    found = [*(ROOT / ".tools/jars").glob("*.jar"), *(TOOLS / "jars").glob("postgresql-*.jar")]
    for jar in found:
        (folder / jar.name).symlink_to(jar)
    return folder


def own_profile(kind: str, catalog: dict[str, str]) -> dict[str, object]:
    """Declare a lake as a newcomer does: on PostgreSQL as `default`, as the README says."""
    default = {"environment": "dev"} if kind == "postgres" else {}
    spark = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
    return {**default, "catalog": catalog, "spark": spark}


# Some thirty processes, three of which start Spark, beside another suite on two cores.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_steps_of_the_readme_run_as_they_are_printed(
    kind: str, catalogs: Catalogs, programs: Path, tmp_path: Path
) -> None:
    """SQLite: the variable names the profile. PostgreSQL: `default` does, and the uri is secret.

    The steps on SQLite end where the run begins: from there on both are the same, and the demo
    takes them on SQLite. There each command starts Spark by itself; on PostgreSQL `doctor` does,
    and the later ones share a warm session.
    """
    warehouse = f"file://{tmp_path}/own/warehouse"
    variables = {"LAKEHOUSE_BACKFILL_JARS": str(jars_with_driver(tmp_path / "jars"))}
    declared = {"type": "sql", "uri": f"sqlite:///{tmp_path}/own/lake.db"}
    uri = declared["uri"]
    (tmp_path / "own").mkdir()
    if kind == "postgres":
        uri = catalogs.make("postgres")["uri"]
        declared = {"type": "sql"}
        variables["PYICEBERG_CATALOG__LAKE__URI"] = uri
    else:
        variables[PROFILE_VARIABLE] = "own"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=warehouse)
    make_lake(catalog)
    profile = own_profile(kind, {"name": "lake", "warehouse": warehouse, **declared})
    newcomer = Newcomer(tmp_path, programs, **variables)
    seen: dict[str, dict[int, int]] = {}
    for line in readme_lines():
        if line.startswith(" "):
            newcomer.do_what_is_said(line, profile)
            continue
        verb = line.split()[1]
        if kind == "sqlite" and verb == "run":
            assert newcomer.printed[verb].startswith(f"lakehouse-backfill --profile own {verb} ")
            return
        if verb in CHAIN:
            options = "" if kind == "postgres" else "--profile own "
            start = f"lakehouse-backfill {options}{verb} {newcomer.run}"
            assert newcomer.printed[verb].split("   #")[0] == start
        is_asked = verb == "doctor" and kind == "postgres"
        shown = newcomer.follow(f"{line} --spark" if is_asked else line)
        if is_asked:
            assert "answers, and reads catalog lake" in shown
            assert "ready" in newcomer.type("lakehouse-backfill session start --idle 5")
        seen[verb] = amounts(catalog)
    if kind == "postgres":
        newcomer.type("lakehouse-backfill session stop")
    assert seen["accept"] == WRONG
    assert seen["publish"] == RIGHT
    assert seen["rollback"] == WRONG
