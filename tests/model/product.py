"""The product in this process: its verbs on the real adapters, killed where a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning import plan as planning
from lakehouse_backfill.core.publication import publish, recover, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging import stage
from lakehouse_backfill.core.validation import validate
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import BackfillError
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.lab import TARGET
from tests.chaos.worker import LabWiring
from tests.model.lake import name_of
from tests.model.verbs import EVENT, POINTER, SWAP
from tests.model.world import Days

BY = "ana"
KINDS = {f"ControlLog.{EVENT}": EVENT, f"ControlLog.{POINTER}": POINTER, SWAP: SWAP}


class Killed(BaseException):
    """The process dies here: nothing that catches errors catches this."""


@dataclass(frozen=True)
class Done:
    """How a verb ended: its error's code, which commits landed, how many points it passed."""

    code: str
    landed: tuple[str, ...]
    points: int
    is_killed: bool
    said: str = ""


class Trace:
    """Writes down what lands, and kills at a point; after that nothing lands any more."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.points = 0
        self.landed: list[str] = []
        self._is_fencing = False

    def __call__(self, point: str) -> None:
        self.points += 1
        name, _, when = point.rpartition(":")
        if name == "Runs.fence":
            self._is_fencing = when == "before"
        if when == "committed" and name in KINDS and not self._is_fencing:
            self.landed.append(KINDS[name])
        if self.at is not None and self.points >= self.at:
            raise Killed(point)


class Product:
    """The verbs, as a process gives them; after a kill it is another process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contract: Any = None
        self._start()

    def _start(self) -> None:
        found = Adapters.open(self._folder, None, NullProgress())
        self._wiring = LabWiring(found.folder, found.profile, NullProgress(), found.profile_name)
        me = f"process-{uuid4()}"
        # This one lives, those before it were killed.
        self.context: Context = replace(
            fault_points.watch_ports(self._wiring.context),
            driver=me,
            is_alive=lambda driver: driver == me,
        )

    def close(self) -> None:
        self._wiring.catalog.engine.dispose()

    def watched(self, act: Callable[[], Any], at: int | None) -> Done:
        """Do something; kill this process at its `at`-th fault point (None: nowhere)."""
        trace, code, said, is_killed = Trace(at), "", "", False
        fault_points.install_hook(trace)
        try:
            act()
        except Killed as point:
            is_killed, said = True, str(point)
        except BackfillError as error:
            code, said = error.code, str(error)
        finally:
            fault_points.install_hook(None)
        if is_killed:
            self.close()
            self._start()
        return Done(code, tuple(trace.landed), trace.points, is_killed, said)

    def make_plan(self, scope: Days) -> Plan:
        declared = self._wiring.load_declaration(Path("jobs") / f"{name_of(scope)}.yaml")
        return planning.make_plan(self.context, declared, BY, None)

    def register(self, plan: Plan) -> None:
        planning.register_plan(self.context, plan, BY)

    def do(self, verb: str, run: str) -> None:
        {
            "approve": lambda: decisions.approve(self.context, run, BY, ""),
            "stage": lambda: stage.stage(self.context, run, BY),
            "validate": lambda: validate.validate(self.context, run, BY),
            "accept": lambda: decisions.accept(self.context, run, BY, ""),
            "cancel": lambda: decisions.cancel(self.context, run, BY, ""),
            "publish": lambda: publish.publish(self.context, run, BY),
        }[verb]()

    def rollback(self, to: int | None, only: Days) -> None:
        way = rollback.plan_rollback(self.context, TARGET, to, only)
        rollback.rollback(self.context, self._wiring.contract(TARGET), way, "wrong", BY)

    def recover(self) -> None:
        recover.recover(self.context, None, BY)

    def order(self) -> list[str]:
        """In which order open runs are looked at."""
        return [status.run_id for status in self.context.runs.list()]
