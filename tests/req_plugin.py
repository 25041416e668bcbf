"""Pytest plugin: which requirements do the tests prove?

A test names what it proves with `@pytest.mark.req("P3")`. `--req-report` lists the ids of
`requirements-ids.txt` as proven or not; `--req-enforce` fails the session when an id of
`closed-requirements.txt` has no passing test among those that ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

IDS_FILE, CLOSED_FILE = "requirements-ids.txt", "closed-requirements.txt"


@dataclass
class Proof:
    """What the tests of this session say about the requirements."""

    titles: dict[str, str]
    closed: list[str]
    passed: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)

    def record(self, ids: Iterable[str], test: str, *, has_passed: bool) -> None:
        for name in ids:
            into = self.passed if has_passed else self.failed
            into.setdefault(name, set()).add(test)

    def proven(self) -> list[str]:
        """List ids with a passing test and no failing one, in the order of the file."""
        return [name for name in self.titles if name in self.passed and name not in self.failed]

    def missing(self) -> list[str]:
        """List closed ids that are not proven."""
        proven = set(self.proven())
        return [name for name in self.closed if name not in proven]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("requirements")
    group.addoption("--req-report", action="store_true", help="list proven and unproven ids")
    group.addoption(
        "--req-enforce", action="store_true", help=f"fail when an id of {CLOSED_FILE} is unproven"
    )
    parser.addini("req_files", "folder of the two id files", default="tests")


PROOF = pytest.StashKey[Proof]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*ids): the requirement ids that a test proves")
    folder = config.rootpath / str(config.getini("req_files"))
    config.stash[PROOF] = Proof(titles=read_titles(folder / IDS_FILE), closed=read_closed(folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a misspelt id: it would count as proof of nothing."""
    titles = config.stash[PROOF].titles
    for item in items:
        ids = tuple(str(name) for mark in item.iter_markers("req") for name in mark.args)
        unknown = [name for name in ids if name not in titles]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such requirement: {', '.join(unknown)}")
        item.user_properties.append(("req", ids))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say early when a closed id is not in the list at all."""
    proof = config.stash[PROOF]
    return [
        f"{CLOSED_FILE}: unknown id {name}" for name in proof.closed if name not in proof.titles
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Count a test as passed when its body passes, as failed when any phase fails."""
    report: pytest.TestReport = yield  # type: ignore[misc]
    ids = next((value for name, value in item.user_properties if name == "req"), ())
    if report.failed or (report.when == "call" and report.passed):
        item.config.stash[PROOF].record(ids, item.nodeid, has_passed=report.passed)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    proof = session.config.stash[PROOF]
    asked = session.config.getoption("--req-enforce") and not session.config.option.collectonly
    if asked and proof.missing() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    proof, write = config.stash[PROOF], terminalreporter.write_line
    proven = proof.proven()
    if config.getoption("--req-report"):
        terminalreporter.section("requirements")
        for name, title in proof.titles.items():
            count = len(proof.passed.get(name, ()))
            state = f"proven by {count}" if name in proven else _state(proof, name)
            write(f"{name:<4} {state:<12} {title}")
        write(f"{len(proven)} of {len(proof.titles)} requirements proven")
    if config.getoption("--req-enforce") and proof.missing():
        terminalreporter.section("closed requirements without proof", red=True)
        for name in proof.missing():
            write(f"{name:<4} {_state(proof, name):<12} {proof.titles.get(name, '(unknown id)')}")
        write('fix: mark a test of it with @pytest.mark.req("ID"), and make it pass')


def read_titles(path: Path) -> dict[str, str]:
    """Read `ID title` lines; empty when there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    parts = (line.partition(" ") for line in lines if line.strip() and not line.startswith("#"))
    return {name: title.strip() for name, _, title in parts}


def read_closed(folder: Path) -> list[str]:
    """Read the ids that finished issues have closed, one a line."""
    path = folder / CLOSED_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _state(proof: Proof, name: str) -> str:
    return "FAILING" if name in proof.failed else "not proven"
