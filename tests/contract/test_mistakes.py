"""The mistakes of a newcomer: each ends with one error, and its printed fix works when pasted.

Without a JVM; those that need one (an error in a function of a job, Ctrl-C while Spark works) are
in `tests/lake/test_interrupt.py`; no Java and no extra are in `test_missing_parts.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from tests.chaos.faults import At, Block
from tests.chaos.lab import CONTRACT, TARGET, Ended, Lab, shared_event

ROLES = "roles: {approve: [ana], accept: [ana], publish: [ana]}\n"
QUERY = "-- name: tenfold\n-- version: 1.1.0\n-- inputs: s\nSELECT d, k, vv AS v FROM {s}\n"


class Interrupt(At):
    """Presses Ctrl-C."""

    def act(self) -> None:
        raise KeyboardInterrupt


class Newcomer(Lab):
    """A lake on which everybody may decide, and who types without naming anybody."""

    def fails(self, *words: str, hook: At | None = None) -> str:
        """Type a command that ends with an error; return its fix."""
        ended = self.do(*words, hook=hook)
        assert ended.code not in (0, 1), ended
        assert ended.error["state"], ended
        assert ended.error["fix"], ended
        return str(ended.error["fix"])

    def paste(self, fix: str) -> Ended:
        """Type each command of a fix, as it is printed; return how the last one ended."""
        lines = re.findall(r"lakehouse-backfill (.+?)(?= says|, then|; |$)", fix)
        assert lines, fix
        return [self.must(*shlex.split(line, comments=True)) for line in lines][-1]

    def edit(self, file: str, old: str, new: str) -> None:
        """Change a file of the project."""
        path = self.folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def saved_newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    found = Newcomer(tmp_path_factory.mktemp("newcomer"))
    found.make()
    contract = found.folder / f"catalog/contracts/{TARGET}.yaml"
    contract.write_text(CONTRACT.replace(ROLES, ""), encoding="utf-8")
    found.manifest("a.yaml", "2024-01-02", "2024-01-05")
    found.run = str(found.must("plan", "jobs/a.yaml").data["run_id"])
    found.save("planned")
    return found


@pytest.fixture
def newcomer(saved_newcomer: Newcomer) -> Newcomer:
    """A lake with one planned run."""
    saved_newcomer.restore("planned")
    return saved_newcomer


def mistype_a_run(lake: Newcomer) -> None:
    lake.paste(lake.fails("status", "bf-nope"))


def mistype_a_product(lake: Newcomer) -> None:
    draft = ("--from", "2024-01-01", "--to", "2024-01-02", "--reason", "why")
    fix = lake.fails("new", "silver.tt", *draft)
    lake.must("new", re.findall(r"the same command with (\S+);", fix)[0], *draft)


def mistype_a_table(lake: Newcomer) -> None:
    lake.edit("jobs/a.yaml", "bronze.s,", "bronze.ss,")
    fix = lake.fails("plan", "jobs/a.yaml")
    lake.edit("jobs/a.yaml", "bronze.ss,", f"{re.findall(r'name one that exists: (.+)', fix)[0]},")
    lake.must("plan", "jobs/a.yaml")


def name_too_short_a_range(lake: Newcomer) -> None:
    lake.edit("jobs/a.yaml", "from: 2024-01-01, to: 2024-02-01", "from: 2024-01-03, to: 2024-01-04")
    fix = lake.fails("plan", "jobs/a.yaml")
    wanted = re.findall(r"from: \S+, to: \S+", fix)[0]
    lake.edit("jobs/a.yaml", "from: 2024-01-03, to: 2024-01-04", wanted)
    lake.must("plan", "jobs/a.yaml")


def forget_to_approve(lake: Newcomer) -> None:
    lake.paste(lake.fails("run", lake.run))
    assert lake.must("run", lake.run).data["state"] == "validated"


def forget_to_accept(lake: Newcomer) -> None:
    lake.must("approve", lake.run)
    lake.must("run", lake.run)
    lake.paste(lake.fails("publish", lake.run))
    assert lake.must("publish", lake.run).data["version"] == 1


def edit_the_manifest_of_an_approved_run(lake: Newcomer) -> None:
    lake.must("approve", lake.run)
    lake.edit("jobs/a.yaml", "wrong rate", "another rate")
    other = str(lake.must("plan", "jobs/a.yaml").data["run_id"])
    assert lake.paste(lake.fails("approve", other)).data["run_id"] == other


def name_a_renamed_column(lake: Newcomer) -> None:
    (lake.folder / "jobs/query.sql").write_text(QUERY, encoding="utf-8")
    lake.edit("jobs/a.yaml", "1.0.0, file: jobs/tenfold.py", "1.1.0, file: jobs/query.sql")
    ended = lake.do("plan", "jobs/a.yaml")
    fault = ended.error["faults"][0]
    assert (ended.code, fault["file"], fault["line"]) == (2, "jobs/query.sql", 4)
    assert ended.error["problem"].count("jobs/query.sql:4") == 1
    lake.edit("jobs/query.sql", fault["field"], fault["fix"].removeprefix("perhaps "))
    lake.must("plan", "jobs/a.yaml")


def run_twice(lake: Newcomer) -> None:
    """A second time is no error, and changes nothing."""
    lake.must("approve", lake.run)
    assert lake.must("run", lake.run).data["chunks_done"] == 3
    assert lake.must("run", lake.run).data["chunks_done"] == 0
    lake.must("accept", lake.run)
    first = lake.must("publish", lake.run).data
    again = lake.must("publish", lake.run).data
    assert (first["was_published"], again["was_published"]) == (False, True)
    assert lake.must("run", lake.run).data["state"] == "published"


def press_ctrl_c(lake: Newcomer) -> None:
    lake.must("approve", lake.run)
    hook = Interrupt("ControlLog.backfill_chunk_run:committing", 2)
    ended = lake.do("run", lake.run, hook=hook)
    assert (ended.code, ended.error["code"]) == (130, "interrupted")
    lake.paste(ended.error["fix"])
    again = lake.must("run", lake.run).data
    assert (again["state"], again["chunks_before"]) == ("validated", 2)


def use_two_terminals(lake: Newcomer) -> None:
    lake.must("approve", lake.run)
    arrived, go = shared_event(), shared_event()
    hook = Block("ControlLog.backfill_chunk_run:committing", 2, arrived=arrived, go=go)
    first = lake.start("run", lake.run, hook=hook)
    assert arrived.wait(30)
    try:
        fix = lake.fails("run", lake.run)
        assert lake.paste(fix.split("; if")[0]).data["runs"][0]["state"] == "staging"
    finally:
        go.set()
        ended = first.end()
    assert ended.code == 0


def name_a_wrong_profile(lake: Newcomer) -> None:
    fix = lake.fails("--profile", "lap", "status")
    lake.must(*re.findall(r"--profile \w+", fix)[0].split(), "status")


MISTAKES: tuple[Callable[[Newcomer], None], ...] = (
    mistype_a_run, mistype_a_product, mistype_a_table, name_too_short_a_range, forget_to_approve,
    forget_to_accept, edit_the_manifest_of_an_approved_run, name_a_renamed_column, run_twice,
    press_ctrl_c, use_two_terminals, name_a_wrong_profile,
)  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda found: found.__name__)
def test_a_mistake_ends_with_one_error_whose_fix_works(
    newcomer: Newcomer, mistake: Callable[[Newcomer], None]
) -> None:
    mistake(newcomer)


def test_what_a_placeholder_stands_for_is_asked_for(newcomer: Newcomer) -> None:
    """Pasted as printed, a command records nobody called WHO and no reason TEXT."""
    fix = newcomer.fails("approve", newcomer.run, "--by", "WHO")
    assert fix == "leave --by out, or write your name behind it"
    newcomer.must("approve", newcomer.run)
    fix = newcomer.fails("cancel", newcomer.run, "--reason", "TEXT")
    assert fix.endswith("with a sentence in quotes behind --reason")
