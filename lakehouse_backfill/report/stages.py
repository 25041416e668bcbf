"""The stages of the run, as its plan listed them, and how far the run has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lakehouse_backfill.core.planning.stages import Phase, Stage, plan_stages
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.html import render

#: Stages that have a mark and a line of their own; further chunks are counted.
MAX_STAGES = 60
#: By phase, the events of which one says that all of its stages were done.
_ENDS: dict[Phase, tuple[str, ...]] = {
    "plan": ("plan",),
    "approval": ("approve", "carry approval"),
    "staging": ("finish staging",),
    "validation": ("pass validation", "fail validation"),
    "acceptance": ("accept", "carry acceptance"),
    "publication": ("finish publishing",),
    "upkeep": ("retire",),
}
_STEP = 16


@dataclass(frozen=True)
class StageMark:
    """A stage at its place in the picture, and whether the run's log says that it was done."""

    stage: Stage
    is_done: bool
    x: int

    @property
    def title(self) -> str:
        """The name of the stage, as people read it."""
        return self.stage.chunk_id or self.stage.kind.replace("_", " ")


def stages_figure(dossier: Dossier) -> Markup:
    """Draw one mark for each stage, in order, and name them in a table below."""
    marks = tuple(_marks(dossier))
    done = sum(mark.is_done for mark in marks)
    return render(
        "stages.html",
        marks=marks[:MAX_STAGES],
        hidden=len(marks) - len(marks[:MAX_STAGES]),
        width=max(len(marks[:MAX_STAGES]), 1) * _STEP,
        title=f"{done} of {len(marks)} stages of the plan were done",
    )


def work_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the picture of the stages."""
    return {"figure": stages_figure(dossier)}


def _marks(dossier: Dossier) -> Iterable[StageMark]:
    """Yield the stages; a chunk is done when the ledger says so, others by their phase's end."""
    verbs = {event.verb for event in dossier.events}
    chunks = {record.chunk_id for record in dossier.chunks if record.status == "done"}
    for number, stage in enumerate(plan_stages(dossier.plan)):
        ended = not verbs.isdisjoint(_ENDS[stage.phase])
        is_done = stage.chunk_id in chunks if stage.chunk_id else ended
        yield StageMark(stage, is_done, number * _STEP)
