"""Publications whose rows Spark wrote anew: what reading verbs do, and what `verify` says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.evidence.verification.deep_verify import (
    REWRITTEN_ROWS_REASON,
    DataRead,
)
from lakehouse_backfill.core.evidence.verification.verify import VerifyOutcome, verify
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.tables.commits import REWRITE_PROPERTY, CommitResult
from tests.support.fakes.compute import FakeCompute, checksum
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, published_run, world

DAYS = ("2020-01-02", "2020-01-03")


class _CutOff(FakeLake):
    """A publisher that dies after its commit, and says how it was looked for."""

    settled: list[bool]

    def adopt(self, request: Any) -> CommitResult:
        super().adopt(request)
        raise KeyboardInterrupt

    def find(self, target: str, token: str, *, finalise: bool = True) -> CommitResult | None:
        self.settled.append(finalise)
        return super().find(target, token, finalise=finalise)


@pytest.mark.req("U13")
def test_who_reads_finishes_no_swap_that_was_cut_off() -> None:
    where, found = world()
    published_run(found, declared())
    run_id = accepted_run(found, declared())
    dying = _CutOff(where.tables, where.must_rewrite, where.calls)
    dying.settled = []
    found = dataclasses.replace(found, publisher=dying)
    with pytest.raises(KeyboardInterrupt):
        publish(found, run_id, "bob")
    dying.settled.clear()

    seen = resolve_accepted(found, contract(), strict=True)

    assert (seen.drifted, set(dying.settled)) == ((), {False})


class _Rewritten(FakeCompute):
    """Reads files that were written anew as the rows of those that they were written from."""

    def checksums(self, table: str, snapshot_id: int | None, scope: Any, *more: Any) -> Any:
        if table != PRODUCT:
            return super().checksums(table, snapshot_id, scope, *more)
        content = self.lake.tables[table].content(snapshot_id)
        plain = {
            label: frozenset(file.removeprefix("anew-") for file in content[label])
            for label in scope.partitions
            if label in content
        }
        self.scanned.append((table, scope.partitions))
        return {label: checksum(files) for label, files in plain.items()}


def _by_rows(where: FakeLake, found: Context, run_id: str) -> None:
    """Let the published snapshot be what a swap by rows leaves: the same rows in other files."""
    table = where.tables[PRODUCT]
    number = found.versions.pointer(PRODUCT).accepted.snapshot_id - 1
    table.summaries[number][REWRITE_PROPERTY] = "{}"
    held = table.contents[number]
    anew = {day: frozenset(f"anew-{file}" for file in held[day]) for day in DAYS}
    table.contents[number] = {**held, **anew}


def _bad(found: VerifyOutcome) -> dict[str, str]:
    wanted = ("version 1", "candidate")
    return {
        one.name: one.because
        for one in found.checks
        if one.ok is False
        and any(name in one.name for name in wanted)
        and "archive" not in one.name
    }


@pytest.mark.req("O4")
def test_a_publication_by_rows_is_verified_by_its_rows_and_not_by_the_candidates_files() -> None:
    where = lake()
    compute = _Rewritten(where)
    found = context(where, compute)
    run_id = published_run(found, declared())
    _by_rows(where, found, run_id)
    compute.scanned.clear()

    shallow = verify(found, run_id)
    assert (_bad(shallow), compute.scanned) == ({}, [])
    said = {one.name: (one.ok, one.because) for one in shallow.checks}
    assert said["data files listed by version 1"] == (None, REWRITTEN_ROWS_REASON)
    assert said["files of the candidate of version 1"][0] is True
    assert "files of version 1" not in said

    deep = verify(found, run_id, deep=True)
    assert (_bad(deep), deep.data_read) == ({}, DataRead(0, 2))
    assert compute.scanned == [(PRODUCT, DAYS)]


@pytest.mark.req("O4")
def test_other_rows_of_a_publication_by_rows_are_named_though_the_candidate_is_intact() -> None:
    where = lake()
    found = context(where, _Rewritten(where))
    run_id = published_run(found, declared())
    _by_rows(where, found, run_id)
    table = where.tables[PRODUCT]
    table.contents[-1] = {**table.contents[-1], DAYS[1]: frozenset({"other"})}

    bad = _bad(verify(found, run_id, deep=True))

    assert list(bad) == ["rows of version 1"]
    assert DAYS[1] in bad["rows of version 1"]
