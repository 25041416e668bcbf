"""Shadows that are branches of their target: their names, by run and epoch."""

from __future__ import annotations

import re
from typing import NamedTuple

from lakehouse_backfill.domain.labels import names


class BranchShadow(NamedTuple):
    """A shadow that is a branch of its target: one branch for each epoch of the run."""

    target: str
    stem: str

    @property
    def name(self) -> str:
        """The name that stands for the newest branch wherever a table is named."""
        run = self.stem.removeprefix(BRANCH_PREFIX).replace("-", "_")
        return f"{self.target}.{_BRANCH_PART}{run}"

    @property
    def branch_pattern(self) -> str:
        """The names of its branches, for people: `lhb-RUN-eN`."""
        return f"{self.stem}-eN"

    def branch(self, epoch: int) -> str:
        """Return the branch that only the driver of this epoch commits to."""
        return f"{self.stem}-e{epoch}"

    def epoch_of(self, branch: str) -> int | None:
        """Return the epoch of one of the shadow's branches; None for any other reference."""
        found = _EPOCH_BRANCH.fullmatch(branch)
        return int(found[2]) if found and found[1] == self.stem else None


class BranchHead(NamedTuple):
    """The newest branch of a shadow: its epoch, and its head."""

    shadow: BranchShadow
    epoch: int
    head_id: int


#: Prefix of the branches of runs. Run ids hold no underscore.
BRANCH_PREFIX, _BRANCH_PART = "lhb-", "branch_lhb_"


_EPOCH_BRANCH = re.compile(rf"({BRANCH_PREFIX}.+)-e(\d+)")


def branch_shadow(target: str, run_id: str) -> BranchShadow:
    """Return the shadow of a run as a branch of its target."""
    return BranchShadow(target, BRANCH_PREFIX + run_id)


def parse_branch_shadow(name: str) -> BranchShadow | None:
    """Return the shadow that `BranchShadow.name` stands for; None for the name of a table."""
    target, _, last = name.rpartition(".")
    if not last.startswith(_BRANCH_PART) or not names.is_table_text(target):
        return None
    return branch_shadow(target, last.removeprefix(_BRANCH_PART).replace("_", "-"))


def table_of_snapshots(name: str) -> str:
    """Return the table whose history holds the snapshots of a shadow: its own, or its target's."""
    shadow = parse_branch_shadow(name)
    return shadow.target if shadow else name


def shadow_of_branch(target: str, branch: str) -> BranchShadow | None:
    """Return the shadow that a branch belongs to; None for a branch of somebody else."""
    found = _EPOCH_BRANCH.fullmatch(branch)
    return BranchShadow(target, found[1]) if found else None
