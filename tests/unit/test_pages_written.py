"""When a run's evidence page is written: by every verb that changes what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.core.planning.plan import DeclaredRun
from lakehouse_backfill.core.publication import rollback as going_back
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ApprovalMissing, ChecksFailed, EnvironmentDown
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.base import Result
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake


class NoCatalog:
    """What a view of a catalog is opened on; the ports are fakes, so nothing is loaded by it."""


class FakeWiring(Adapters):
    """A wiring whose ports are fakes, and whose pages are real."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Profile(catalog={"name": "lake"}), NullProgress())
        self.where = lake()
        self.fake = FakeCompute(self.where)
        self.wanted = declared()
        self.__dict__["context"] = context(self.where, self.fake)
        self.__dict__["catalog"] = NoCatalog()

    def load_declaration(self, manifest_file: Path) -> DeclaredRun:
        return self.wanted

    def contract(self, product: str) -> Contract:
        return contract()

    def require_java(self) -> None: ...

    def preload_suites(self) -> None: ...


class Case:
    """A project over fakes, one run of it, and the page of that run."""

    def __init__(self, folder: Path) -> None:
        self.wiring = FakeWiring(folder)
        self.project = Project(self.wiring)
        self.context: Context = self.wiring.context
        self.folder = folder / ".lakehouse-backfill" / "evidence"
        self.run = str(self.project.plan("m.yaml", by="bob").run_id)

    def page(self, run: str | None = None) -> Path:
        return self.folder / f"{run or self.run}.html"

    def shown(self, run: str | None = None) -> str:
        """The state that page and archive show."""
        page = self.page(run)
        state = json.loads(page.with_suffix(".json").read_text("utf-8"))["run"]["state"]
        return str(state)

    def forget(self) -> None:
        """Lose the pages, as on the machine of somebody else."""
        for path in self.folder.iterdir():
            path.unlink()

    def block(self) -> None:
        """Let no page be written any more."""
        self.forget()
        self.folder.rmdir()
        self.folder.write_text("in the way", encoding="utf-8")

    def accepted(self) -> Case:
        self.project.approve(self.run, "ana")
        self.project.run(self.run, "bob")
        self.project.accept(self.run, "ana")
        return self

    def published(self) -> Case:
        self.accepted().project.publish(self.run, "bob")
        return self


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.req("O4")
def test_an_approval_makes_no_page_but_keeps_one_that_is_there(case: Case, tmp_path: Path) -> None:
    assert case.project.approve(case.run, "ana").report is None
    assert not case.folder.exists()
    other = Case(tmp_path / "other")
    other.project.evidence(other.run)
    assert other.project.approve(other.run, "ana").report == str(other.page())
    assert other.shown() == "approved"


@pytest.mark.req("O4")
def test_each_step_to_publication_and_back_shows_on_the_page(case: Case) -> None:
    seen = []
    for step in (
        lambda: case.project.approve(case.run, "ana") and case.project.run(case.run, "bob"),
        lambda: case.project.accept(case.run, "ana", "looks right"),
        lambda: case.project.publish(case.run, "bob"),
        lambda: case.project.rollback(PRODUCT, reason="wrong", by="bob"),
        lambda: case.project.publish(case.run, "bob"),
    ):
        found = step()
        assert found.report == str(case.page())
        assert found.warnings == ()
        seen.append(case.shown())
    assert seen == ["validated", "accepted", "published", "rolled_back", "published"]


def test_each_page_that_is_written_brings_the_index_of_all_runs_up_to_date(
    case: Case, tmp_path: Path
) -> None:
    case.accepted()
    index = case.folder / "index.html"
    assert "accepted" in index.read_text("utf-8")
    case.project.publish(case.run, "bob")
    assert f'<a href="{case.run}.html">' in index.read_text("utf-8")
    assert "✓ published" in index.read_text("utf-8")
    exported = case.project.evidence(case.run, tmp_path / "audit")
    assert exported.index == str(tmp_path / "audit" / "index.html")
    assert case.run in Path(exported.index).read_text("utf-8")


def test_a_page_is_written_although_the_index_cannot_be(case: Case) -> None:
    (case.folder / "index.html").mkdir(parents=True)
    found = case.project.evidence(case.run)
    assert Path(found.report or "").is_file()


@pytest.mark.req("O4")
def test_publishing_again_writes_the_page_again(case: Case) -> None:
    case.published().forget()
    found = case.project.publish(case.run, "bob")
    assert found.was_published
    assert found.report == str(case.page())
    assert case.shown() == "published"


@pytest.mark.req("O4")
@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda project, run: project.accept(run, "ana"), "accepted"),
        (lambda project, run: project.reject(run, "ana", "too few rows"), "rejected"),
        (lambda project, run: project.cancel(run, "bob"), "cancelled"),
    ],
)
def test_a_decision_writes_the_page_also_where_there_is_none_yet(case, act, state) -> None:
    case.project.approve(case.run, "ana")
    case.project.run(case.run, "bob")
    case.forget()
    act(case.project, case.run)
    assert case.shown() == state


@pytest.mark.req("O4")
def test_partitions_that_go_back_show_on_the_page_of_the_run_that_stays(case: Case) -> None:
    case.published().project.rollback(PRODUCT, None, ("2020-01-02",), "one day", "bob")
    assert case.shown() == "published"
    assert "except 2020-01-02, rolled back since" in case.page().read_text("utf-8")


@pytest.mark.req("O4")
def test_a_rollback_writes_the_page_of_each_run_that_left_or_returned(case: Case) -> None:
    first = case.published().run
    case.wiring.wanted = declared("2020-01-04", "2020-01-06")
    case.run = str(case.project.plan("m.yaml", by="bob").run_id)
    second = case.published().run
    case.project.rollback(PRODUCT, 0, reason="both", by="bob")
    assert [case.shown(run) for run in (first, second)] == ["rolled_back", "rolled_back"]
    case.project.rollback(PRODUCT, 2, reason="both are back", by="bob")
    assert [case.shown(run) for run in (first, second)] == ["published", "published"]


@pytest.mark.req("O4")
def test_a_revision_writes_the_page_of_the_run_that_it_takes_the_place_of(case: Case) -> None:
    old = case.accepted().run
    case.wiring.wanted = declared("2020-01-01", "2020-01-04")
    found = case.project.plan("m.yaml", revise=old, by="bob")
    assert found.run_id != old
    assert case.shown(old) == "superseded"
    assert not case.page(str(found.run_id)).exists()


@pytest.mark.req("O4")
@pytest.mark.parametrize(
    ("trouble", "raised", "state"),
    [
        ({"dies_at": "c0002-2020-01-03"}, EnvironmentDown, "failed"),
        ({"chunk_duplicates": 3}, ChecksFailed, "halted"),
    ],
)
def test_a_run_that_stops_writes_its_page_and_fails_all_the_same(case, trouble, raised, state):
    case.project.approve(case.run, "ana")
    for name, value in trouble.items():
        setattr(case.wiring.fake, name, value)
    with pytest.raises(raised):
        case.project.run(case.run, "bob")
    assert case.shown() == state


@pytest.mark.req("O4")
def test_a_failure_is_told_as_it_was_also_when_no_page_can_be_written(case: Case) -> None:
    case.project.evidence(case.run)
    case.block()
    with pytest.raises(ApprovalMissing):
        case.project.run(case.run, "bob")


@pytest.mark.req("O4")
@pytest.mark.parametrize("verb", ["publish", "rollback", "accept"])
def test_a_page_that_cannot_be_written_is_a_warning_beside_what_was_done(case, verb) -> None:
    if verb == "accept":
        case.project.approve(case.run, "ana")
        case.project.run(case.run, "bob")
    elif verb == "publish":
        case.accepted()
    else:
        case.published()
    case.block()
    acts: dict[str, Callable[[], Result]] = {
        "accept": lambda: case.project.accept(case.run, "ana"),
        "publish": lambda: case.project.publish(case.run, "bob"),
        "rollback": lambda: case.project.rollback(PRODUCT, reason="wrong", by="bob"),
    }
    found = acts[verb]()
    assert found.report is None
    (warning,) = found.warnings
    assert warning.startswith(f"the page of {case.run} is not up to date: ")
    assert warning.endswith(f"later: lakehouse-backfill evidence {case.run}")
    states = {"accept": "accepted", "publish": "published", "rollback": "rolled_back"}
    assert case.context.runs.status(case.run).state.value == states[verb]


@pytest.mark.req("O4")
def test_recover_writes_the_pages_of_the_runs_that_it_changed(case, monkeypatch) -> None:
    case.published().forget()
    way = going_back.plan_rollback(case.context, PRODUCT, None, ())
    with monkeypatch.context() as cut:
        # Cut off after the pointer moved, before the run was told.
        cut.setattr(going_back, "align_run_states", lambda *_: None)
        going_back.rollback(case.context, contract(), way, "wrong", "bob")
    case.project.recover(None, "bob", dry_run=True)
    assert not case.page().exists()
    found = case.project.recover(None, "bob")
    assert [item.subject for item in found.actions] == [case.run]
    assert case.shown() == "rolled_back"


@pytest.mark.req("O4")
def test_recover_that_finds_nothing_writes_nothing(case: Case) -> None:
    publish(case.accepted().context, case.run, "bob")
    case.forget()
    assert case.project.recover(None, "bob").to_dict() == {"actions": [], "dry_run": False}
    assert not case.page().exists()


def test_status_and_page_say_the_same_of_first_rows(case: Case) -> None:
    case.wiring.wanted = declared("2020-01-10", "2020-01-12")
    case.run = str(case.project.plan("m.yaml", by="bob").run_id)
    case.published()
    (line,) = case.project.status(case.run).runs
    archive = json.loads(case.page().with_suffix(".json").read_text("utf-8"))
    assert {name: getattr(line, name) for name in archive["standing"]} == archive["standing"]
    assert line.is_safe == "yes: nothing was there before, so nothing was replaced"
