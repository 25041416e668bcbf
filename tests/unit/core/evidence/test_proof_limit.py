"""verify says which proof the catalog does not allow, by what `doctor` found of it (U13)."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.evidence.verification.verify import verify
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.errors import BackfillError, CatalogDown, Unsupported
from tests.support.fakes.steps import accepted_run, world


@pytest.mark.parametrize("is_asked", [False, True])
def test_verify_names_lists_of_files_that_may_lack_some(*, is_asked: bool) -> None:
    where, context = world()
    run_id = accepted_run(context)
    every = {name: True for name in Capabilities.model_fields if name != "seen"}
    where.found = Capabilities(**(every | {"client_planning": not is_asked}))
    checks = [one for one in verify(context, run_id).checks if one.name == "lists of files"]
    assert [one.ok for one in checks] == [None] * is_asked
    assert all("client_planning: no" in one.because for one in checks)
    assert bool(context.proof_limit()) is is_asked


@pytest.mark.parametrize("error", [Unsupported, CatalogDown])
def test_who_may_not_read_what_doctor_found_is_told_nothing_and_nothing_fails(
    error: type[BackfillError], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, context = world()
    run_id = accepted_run(context)

    def refuse() -> None:
        raise error("403", state="", fix="")

    monkeypatch.setattr(context.shadows, "capabilities", refuse)
    assert context.proof_limit() == ""
    names = [one.name for one in verify(context, run_id).checks]
    assert names
    assert "lists of files" not in names
