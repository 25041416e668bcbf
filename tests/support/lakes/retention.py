"""A small product on a real catalog, restated in this process, with a clock that tests move."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.fault_points import watch_ports
from lakehouse_backfill.ports.compute import ComputePorts
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.engine import PlainEngine
from tests.chaos.lab import CONTRACT, DAYS, PROFILES, SOURCE, TARGET, Lab
from tests.chaos.worker import LabWiring
from tests.support.fakes.kills import Killed, hooked, killed_at

WHO = "ana"
SHADOWS = "lakehouse_backfill_shadow"


class MovedClock:
    """The time of this machine, and some days."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(timezone.utc) + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Engine(PlainEngine):
    """The lab's engine; what retention has no use for is not there."""

    def __getattr__(self, name: str) -> Any:
        def absent(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(name)

        return absent


class RetentionWiring(LabWiring):
    def _make_compute_ports(self) -> ComputePorts:
        engine: Any = Engine(self.catalog)
        return ComputePorts(**{one.name: engine for one in fields(ComputePorts)})


class NamedLab(Lab):
    """The lab in a catalog of another name: Spark finds the tables of a name only."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root)
        self.name = name

    def catalog(self) -> SqlCatalog:
        lake = self.folder / "lake"
        return SqlCatalog(
            self.name, uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse"
        )


class RetentionLake:
    """The lab's product, its runs, and what is left of them."""

    def __init__(self, root: Path, contract: str = "", name: str = "lake") -> None:
        self.lab = NamedLab(root, name)
        self.lab.make()
        self.keep(contract)
        self._write("profiles.yaml", PROFILES.replace("name: lake", f"name: {name}"))
        self.clock = MovedClock()
        self.project = self.open()
        self.catalog = self.lab.catalog()

    def _write(self, file: str, text: str) -> None:
        (self.lab.folder / "catalog" / file).write_text(text, encoding="utf-8")

    def keep(self, contract: str) -> None:
        """Let the contract say something else from now on."""
        self._write(f"contracts/{TARGET}.yaml", CONTRACT + contract)

    def open(self) -> Project:
        """Open the project as another process would, with the same clock."""
        found = Adapters.open(self.lab.folder, None, NullProgress())
        wiring = RetentionWiring(found.folder, found.profile, NullProgress(), found.profile_name)
        watched = watch_ports(wiring.context)
        vars(wiring)["context"] = replace(watched, clock=self.clock)
        return Project(wiring)

    @contextmanager
    def killed_at(self, moment: int | str) -> Iterator[None]:
        """What is done inside dies at a point, by its name or number; the next process goes on."""
        with killed_at(moment):
            self.project = self.open()
            with pytest.raises(Killed):
                yield
        self.project = self.open()

    @contextmanager
    def hooked(self, hook: Callable[[str], None]) -> Iterator[None]:
        """Call `hook` at each point that is reached inside, by a process of its own."""
        with hooked(hook):
            self.project = self.open()
            yield
        self.project = self.open()

    def later(self, days: float) -> None:
        self.clock.ahead += timedelta(days=days)

    def save(self, where: Path) -> None:
        """Keep everything as it is now."""
        shutil.copytree(self.lab.folder, where)

    def restore(self, where: Path) -> None:
        """Begin again from there, with new connections."""
        shutil.rmtree(self.lab.folder)
        shutil.copytree(where, self.lab.folder)
        self.catalog.engine.dispose()
        self.project, self.catalog = self.open(), self.lab.catalog()

    def staged(self, first: str = DAYS[1], stop: str = DAYS[3], name: str = "a") -> str:
        """Plan, approve and stage a run."""
        file = self.lab.manifest(f"{name}.yaml", first, stop)
        run = str(self.project.plan(file, by=WHO).run_id)
        self.project.approve(run, WHO)
        self.project.stage(run, WHO)
        return run

    def accepted(self, *days: str, name: str = "a") -> str:
        run = self.staged(*days, name=name)
        self.project.validate(run, WHO)
        self.project.accept(run, WHO)
        return run

    def published(self, *days: str, name: str = "a") -> str:
        run = self.accepted(*days, name=name)
        self.project.publish(run, WHO)
        return run

    def republished(self) -> str:
        """Publish a run, roll it back, and publish it again."""
        run = self.published()
        self.project.rollback(TARGET, 0, reason="wrong", by=WHO)
        self.project.publish(run, WHO)
        return run

    def feed(self) -> None:
        """Let the source change, so that the next plan is another run."""
        table = self.catalog.load_table(SOURCE)
        table.append(table.scan().to_arrow().slice(0, 1))

    def maintain(self, **options: Any) -> dict[str, Any]:
        return self.project.maintain(WHO, **options).to_dict()

    def shadows(self) -> list[str]:
        if not self.catalog.namespace_exists(SHADOWS):
            return []
        return sorted(".".join(name) for name in self.catalog.list_tables(SHADOWS))

    def tags(self, table: str = TARGET) -> dict[str, int]:
        refs = self.catalog.load_table(table).metadata.refs
        return {name: ref.snapshot_id for name, ref in refs.items() if name != "main"}

    def rows(self, table: str = TARGET, snapshot_id: int | None = None) -> list[dict[str, Any]]:
        found = self.catalog.load_table(table).scan(snapshot_id=snapshot_id).to_arrow()
        rows: list[dict[str, Any]] = found.to_pylist()
        return sorted(rows, key=str)

    def files(self) -> set[str]:
        """All data files on disk, but for those of control tables."""
        warehouse = self.lab.folder / "lake" / "warehouse"
        found = (path for path in warehouse.rglob("*.parquet"))
        return {str(path) for path in found if "/lakehouse_backfill/" not in str(path)}


def names(items: list[dict[str, Any]], kind: str | None = None) -> list[str]:
    """The names of what is kept or let go, in order."""
    return sorted(item["name"] for item in items if kind in (None, item["kind"]))
