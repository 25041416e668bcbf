"""The verbs that are killed, from which state of a run, and the points that they pass.

`test_kills.py` compares the lists with what the verbs really do, and kills at every point. On a
branch of the target it kills where a branch, or what is read of it, is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehouse_backfill.adapters.iceberg.control.schemas import CONTROL_TABLES


def moments(points: Sequence[str]) -> list[tuple[str, int]]:
    """Number the points at which a kill leaves another lake than at those beside them.

    These are right before and right after each commit. Around the method that commits nothing more
    is written: its own points are the same moments, unless there is no commit in it.
    """
    found, seen = [], Counter[str]()
    for place, point in enumerate(points):
        seen[point] += 1
        name, _, when = point.rpartition(":")
        beside = {
            "before": (points[place + 1 : place + 2], f"{name}:after"),
            "after": (points[:place][-1:], f"{name}:before"),
        }.get(when)
        if beside is None or list(beside[0]) == [beside[1]]:
            found.append((point, seen[point]))
    return found


@dataclass(frozen=True)
class Scenario:
    """A command on a saved state; `then` is what is typed until the work is done."""

    name: str
    state: str
    command: tuple[str, ...]
    then: tuple[tuple[str, ...], ...]
    points: tuple[str, ...]

    #: Only so many points, when those after them are another scenario's.
    first: int | None = None
    #: What the command says when it was cut off right before its end.
    already: str = ""
    isolation: str = "clone"

    def __str__(self) -> str:
        return self.name if self.isolation == "clone" else f"{self.name} on a branch"

    def cases(self) -> list[tuple[str, int]]:
        """Each moment with its number; of those of a loop the first and the last time."""
        points = self.points[: self.first]
        return [
            (point, nth)
            for point, nth in moments(points)
            if nth in (1, 2, points.count(point))
            and (self.isolation == "clone" or point.startswith(ON_BRANCH))
        ]


#: What commits something else on a branch than on a clone, or reads what was committed there.
ON_BRANCH = ("Shadows.", "Staging.", "Spark.", "Publisher.")


def _method(name: str, *inner: str) -> tuple[str, ...]:
    return (f"{name}:before", *inner, f"{name}:after")


def _commit(name: str) -> tuple[str, ...]:
    return f"{name}:committing", f"{name}:committed"


_APPEND = _method("Runs.append", *_commit("ControlLog.run_event"))
_EVIDENCE = _method("Evidence.record", *_commit("ControlLog.evidence"))
_FINGERPRINTS = _method("Evidence.record_fingerprints", *_commit("ControlLog.file_fingerprint"))
_MOVE = _method("Versions.move", *_commit("ControlLog.accepted_output_version"))
_FENCES = _method(
    "Runs.fence",
    *_commit("ControlLog.accepted_output_version"),
    *_commit("ControlLog.backfill_chunk_run"),
    *_commit("ControlLog.evidence"),
    *_commit("ControlLog.reject_record"),
)
_PIN = _method("Pins.pin", *_commit("Pins.tag"))
_OPEN = _method(
    "Shadows.open",
    *_commit("Catalog.create_namespace"),
    *_commit("Shadows.metadata_file"),
    *_commit("Shadows.register"),
)
_OPEN_BRANCH = _method("Shadows.open", *_commit("Shadows.register"))
_SHADOW_FENCE = _method("Shadows.fence", *_commit("Shadows.fence"))
_CHUNK = _method("Staging.stage", *_commit("Spark.overwrite"))
_RECORD = _method("Runs.record_chunk", *_commit("ControlLog.backfill_chunk_run"))
_ADOPT = _method("Publisher.adopt", *_commit("Publisher.swap"))
_RESTORE = _method("Staging.restore", *_commit("Spark.overwrite"))
_RETIRE = _method("Shadows.retire", *_commit("Shadows.drop"))
_REVERT = _method("Publisher.revert", *_commit("Publisher.swap"))
#: What is left of a publication whose files are swapped in already.
_FINISH = (
    *_FENCES, *_APPEND, *_MOVE, *_MOVE, *_EVIDENCE, *_APPEND,
)  # fmt: skip

_PLAN = ("plan", "jobs/a.yaml")
_STAGE, _VALIDATE, _PUBLISH, RECOVER = (
    (verb, "RUN") for verb in ("stage", "validate", "publish", "recover")
)
_RECOVER_ALL = ("recover", "--all")
_ROLLBACK = ("rollback", "silver.t", "--to", "0", "--reason", "wrong")

SCENARIOS = (
    Scenario("plan", "new", _PLAN, (_PLAN,), (
        *_method(
            "Evidence.grant_leases", *_commit("Catalog.create_namespace"),
            *_commit("Catalog.create_table") * len(CONTROL_TABLES),
            *_commit("ControlLog.pin_lease"),
        ),
        *_PIN, *_PIN, *_EVIDENCE,
        *_method(
            "Runs.register", *_commit("ControlLog.pipeline_run"), *_commit("ControlLog.run_event"),
        ),
    )),
    Scenario("stage", "approved", _STAGE, (_STAGE,), (
        *_APPEND, *_EVIDENCE, *_OPEN, *_SHADOW_FENCE, *(*_CHUNK, *_RECORD) * 3, *_EVIDENCE,
        *_APPEND,
    )),
    Scenario("stage again", "staging cut off", _STAGE, (_STAGE,), (
        *_FENCES, *_APPEND, *_method("Shadows.open"), *_SHADOW_FENCE, *_RECORD, *_RECORD, *_CHUNK,
        *_RECORD, *_EVIDENCE, *_APPEND,
    ), first=22),
    Scenario("validate", "staged", _VALIDATE, (_VALIDATE,), (
        *_APPEND, *_FINGERPRINTS, *_EVIDENCE, *_APPEND,
    )),
    Scenario("publish", "accepted", _PUBLISH, (_PUBLISH,), (
        *_APPEND, *_MOVE, *_ADOPT, *_MOVE, *_EVIDENCE, *_APPEND,
    )),
    Scenario("publish again", "publishing cut off", _PUBLISH, (_PUBLISH,), _FINISH, first=0),
    Scenario("roll back", "published", _ROLLBACK, (_ROLLBACK,), (
        *_MOVE, *_REVERT, *_MOVE, *_APPEND,
    ), already="silver.t is at version 0 already"),
    Scenario("roll back by rewriting", "published without tags", _ROLLBACK, (_ROLLBACK,), (
        *_MOVE, *_OPEN, *_RESTORE, *_REVERT, *_RETIRE, *_MOVE, *_APPEND,
    ), already="silver.t is at version 0 already"),
    Scenario("recover a staging", "staging cut off", RECOVER, (RECOVER, _STAGE), (
        *_FENCES, *_APPEND,
    )),
    Scenario(
        "recover a publication", "publishing cut off", RECOVER, (RECOVER,), _FINISH, first=22
    ),
    Scenario("recover a rollback", "rollback cut off", _RECOVER_ALL, (_RECOVER_ALL,), (
        *_method("Versions.move"), *_method("Publisher.revert"), *_MOVE, *_APPEND,
    )),
    Scenario("rebuild a pointer", "pointer edited", _RECOVER_ALL, (_RECOVER_ALL,), _method(
        "Versions.rebuild", *_commit("ControlLog.accepted_output_version"),
    )),
)  # fmt: skip


def _on_branch(scenario: Scenario) -> Scenario:
    """The same on a branch, for which no namespace and no metadata file is made."""
    points = " ".join(scenario.points).replace(" ".join(_OPEN), " ".join(_OPEN_BRANCH))
    return replace(scenario, isolation="branch", points=tuple(points.split()))


BRANCH_SCENARIOS = tuple(map(_on_branch, SCENARIOS))
