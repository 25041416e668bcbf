"""Pytest plugin: which requirements do the tests prove?

A test names what it proves with `@pytest.mark.req("P3")`. `--req-report` lists the ids of
`requirements-ids.txt` as proven or not; `--req-enforce` fails the session when an id of
`closed-requirements.txt` has no passing test among those that ran. Of sessions that each run a part
of the tests, each keeps what it proved (`--req-keep FILE`), and all are judged together:

    python -m tests.req_plugin FILE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import gate_plugin

IDS_FILE, CLOSED_FILE = "requirements-ids.txt", "closed-requirements.txt"


@dataclass
class Proof:
    """What the tests of this session say about the requirements."""

    titles: dict[str, str]
    closed: list[str]
    passed: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)
    #: The gates that tests have shown closed, as (group, name).
    gates: set[tuple[str, str]] = field(default_factory=set)

    def record(self, ids: Iterable[str], test: str, *, has_passed: bool) -> None:
        for name in ids:
            into = self.passed if has_passed else self.failed
            into.setdefault(name, set()).add(test)

    def keep(self, file: Path) -> None:
        """Write down what was proven, to be judged with what other sessions prove."""
        kinds = {"passed": self.passed, "failed": self.failed}
        kept: dict[str, object] = {
            kind: {name: sorted(tests) for name, tests in found.items()}
            for kind, found in kinds.items()
        }
        kept["gates"] = sorted(self.gates)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept), encoding="utf-8")

    def add(self, file: Path) -> None:
        """Count what another session kept as if its tests had run here."""
        kept = json.loads(file.read_text(encoding="utf-8"))
        self.gates |= {(group, name) for group, name in kept.get("gates", ())}
        for kind in ("passed", "failed"):
            for name, tests in kept[kind].items():
                for test in tests:
                    self.record([name], test, has_passed=kind == "passed")

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
    group.addoption(
        "--req-keep", type=Path, metavar="FILE", help="write down what was proven, for a judge"
    )
    parser.addini("req_files", "folder of the two id files", default="tests")


PROOF = pytest.StashKey[Proof]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*ids): the requirement ids that a test proves")
    folder = config.rootpath / str(config.getini("req_files"))
    config.stash[PROOF] = proof_of_nothing(folder)
    kept = config.getoption("--req-keep")
    if kept is not None:
        # A session that is cut off must not leave what an earlier one proved.
        kept.unlink(missing_ok=True)


def ids_of(item: pytest.Item) -> tuple[str, ...]:
    """Give the ids that a test names."""
    return tuple(str(name) for mark in item.iter_markers("req") for name in mark.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a misspelt id: it would count as proof of nothing."""
    titles = config.stash[PROOF].titles
    for item in items:
        ids = ids_of(item)
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
    kept = session.config.getoption("--req-keep")
    if kept is not None and not session.config.option.collectonly:
        proof.gates = gate_plugin.seen
        proof.keep(kept)
    asked = session.config.getoption("--req-enforce") and not session.config.option.collectonly
    if asked and proof.missing() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    proof, write = config.stash[PROOF], terminalreporter.write_line
    if config.getoption("--req-report"):
        terminalreporter.section("requirements")
        for line in reported(proof):
            write(line)
    if config.getoption("--req-enforce") and proof.missing():
        terminalreporter.section("closed requirements without proof", red=True)
        for line in complained(proof):
            write(line)


def reported(proof: Proof) -> Iterator[str]:
    """Give the lines that say of each id whether it is proven."""
    proven = proof.proven()
    for name, title in proof.titles.items():
        count = len(proof.passed.get(name, ()))
        state = f"proven by {count}" if name in proven else _state(proof, name)
        yield f"{name:<4} {state:<12} {title}"
    yield f"{len(proven)} of {len(proof.titles)} requirements proven"


def complained(proof: Proof) -> Iterator[str]:
    """Give the lines that name the closed ids without proof, and the fix."""
    for name in proof.missing():
        yield f"{name:<4} {_state(proof, name):<12} {proof.titles.get(name, '(unknown id)')}"
    yield 'fix: mark a test of it with @pytest.mark.req("ID"), and make it pass'


def proof_of_nothing(folder: Path) -> Proof:
    """Begin with what there is to prove."""
    return Proof(titles=read_titles(folder / IDS_FILE), closed=read_closed(folder))


def judge(folder: Path, files: list[Path]) -> tuple[list[str], int]:
    """Judge sessions together: lines to say, and 1 when a closed id is unproven or a file missing.

    A part that did not run proves nothing, and hides nothing that would have failed in it.
    """
    proof = proof_of_nothing(folder)
    absent = [file for file in files if not file.is_file()]
    if absent:
        names = ", ".join(str(file) for file in absent)
        return [f"these tests did not run to their end: {names}", "fix: make test-all"], 1
    for file in files:
        proof.add(file)
    lines, faults = ["requirements:", *reported(proof)], []
    if proof.missing():
        faults += ["closed requirements without proof:", *complained(proof)]
    if "T13" in proof.closed and (never := gate_plugin.never_closed(proof.gates)):
        faults += [f"no test has shown this gate closed: {gate}" for gate in never]
        faults.append("fix: tests/unit/core/validation/test_gates_close.py is a table of cases")
    return [*lines, *faults], int(bool(faults))


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


if __name__ == "__main__":
    said, code = judge(Path(__file__).parent, [Path(name) for name in sys.argv[1:]])
    sys.stdout.write("\n".join(said) + "\n")
    sys.exit(code)
