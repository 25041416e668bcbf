"""Rules of the plugin that ties tests to requirements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakehouse_backfill.core.runs.gate_registry import GATES
from tests import req_plugin

TESTS = Path(__file__).parents[1]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Make a project with two requirements, the first of them closed."""
    # Other plugins have no part in this, and are slow to load anew for each session.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p tests.req_plugin\nreq_files = tests\n")
    folder = pytester.mkdir("tests")
    (folder / "requirements-ids.txt").write_text("# ids\nA1 first thing\nA2 second thing\n")
    (folder / "closed-requirements.txt").write_text("# closed\nA1\n")
    return pytester


def marked(project: pytest.Pytester, name: str, body: str) -> None:
    text = f"import pytest\n\n@pytest.mark.req({name})\ndef test_rule():\n    {body}\n"
    project.makepyfile(test_rule=text)


def test_a_passing_test_proves_its_ids(project: pytest.Pytester) -> None:
    marked(project, "'A1', 'A2'", "pass")
    result = project.runpytest_inprocess("--req-report", "--req-enforce")
    result.stdout.fnmatch_lines(["A1*proven by 1*first thing", "2 of 2 requirements proven"])
    assert result.ret == 0


def test_a_closed_id_without_a_test_fails_the_session(project: pytest.Pytester) -> None:
    marked(project, "'A2'", "pass")
    result = project.runpytest_inprocess("--req-enforce")
    result.stdout.fnmatch_lines(["*closed requirements without proof*", "A1*not proven*first*"])
    result.assert_outcomes(passed=1)
    assert result.ret == 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("assert False", id="fails"),
        pytest.param("pytest.skip()", id="is skipped"),
        pytest.param("pytest.xfail('known')", id="is expected to fail"),
    ],
)
def test_a_test_that_does_not_pass_proves_nothing(project: pytest.Pytester, body: str) -> None:
    marked(project, "'A1'", body)
    assert project.runpytest_inprocess("--req-enforce").ret == 1


def test_an_id_with_one_failing_test_is_not_proven(project: pytest.Pytester) -> None:
    marked(project, "'A1'", "pass")
    project.makepyfile(
        test_other="import pytest\n\n@pytest.mark.req('A1')\ndef test_it():\n    assert 0\n"
    )
    result = project.runpytest_inprocess("--req-report")
    result.stdout.fnmatch_lines(["A1*FAILING*", "0 of 2 requirements proven"])


def test_a_failing_teardown_takes_the_proof_back(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_rule=(
            "import pytest\n\n@pytest.fixture\ndef broken():\n    yield\n    assert 0\n\n"
            "@pytest.mark.req('A1')\ndef test_rule(broken):\n    pass\n"
        )
    )
    result = project.runpytest_inprocess("--req-report")
    result.stdout.fnmatch_lines(["0 of 2 requirements proven"])


def test_a_misspelt_id_is_refused(project: pytest.Pytester) -> None:
    marked(project, "'A9'", "pass")
    result = project.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*test_rule: no such requirement: A9*"])
    assert result.ret == 4


def test_nothing_is_enforced_unless_asked(project: pytest.Pytester) -> None:
    marked(project, "'A2'", "pass")
    assert project.runpytest_inprocess().ret == 0


def test_every_closed_id_of_this_project_is_in_its_list() -> None:
    listed = (TESTS / "requirements-ids.txt").read_text(encoding="utf-8").splitlines()
    closed = (TESTS / "closed-requirements.txt").read_text(encoding="utf-8").splitlines()
    ids = {line.split(" ")[0] for line in listed}
    assert [name for name in closed if not name.startswith("#") and name not in ids] == []


def _kept(project: pytest.Pytester, part: str, name: str, body: str) -> Path:
    """Run a session of one test that keeps what it proved."""
    marked(project, name, body)
    file = project.path / "proofs" / part
    project.runpytest_inprocess(f"--req-keep={file}")
    return file


def test_sessions_that_each_run_a_part_are_judged_together(project: pytest.Pytester) -> None:
    files = [_kept(project, "one", "'A1'", "pass"), _kept(project, "two", "'A2'", "pass")]
    lines, code = req_plugin.judge(project.path / "tests", files)
    assert lines[-1] == "2 of 2 requirements proven"
    assert code == 0
    assert req_plugin.judge(project.path / "tests", files[1:])[1] == 1


def test_what_fails_in_one_part_is_not_proven_by_another(project: pytest.Pytester) -> None:
    files = [_kept(project, "one", "'A1'", "pass"), _kept(project, "two", "'A1'", "assert 0")]
    lines, code = req_plugin.judge(project.path / "tests", files)
    assert "A1   FAILING      first thing" in lines
    assert code == 1


def test_a_part_that_did_not_run_to_its_end_fails_the_judgement(project: pytest.Pytester) -> None:
    files = [_kept(project, "one", "'A1', 'A2'", "pass"), project.path / "proofs" / "two"]
    assert req_plugin.judge(project.path / "tests", files) == (
        [f"these tests did not run to their end: {files[1]}", "fix: make test-all"],
        1,
    )


def test_a_gate_that_no_part_has_shown_closed_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements-ids.txt").write_text("T13 gates are shown closed\n")
    (tmp_path / "closed-requirements.txt").write_text("T13\n")
    closed = [[gate.group, gate.name] for gate in GATES if gate.name != "edges are closed"]
    file = tmp_path / "part"
    proof = {"passed": {"T13": ["t"]}, "failed": {}, "gates": closed}
    file.write_text(json.dumps(proof))
    lines, code = req_plugin.judge(tmp_path, [file])
    assert [line for line in lines if line.startswith("no test")] == [
        "no test has shown this gate closed: edges are closed"
    ]
    assert code == 1
    file.write_text(json.dumps(proof | {"gates": [*closed, ["edge", "edges are closed"]]}))
    assert req_plugin.judge(tmp_path, [file])[1] == 0


def test_an_older_proof_does_not_outlive_the_start_of_a_session(project: pytest.Pytester) -> None:
    file = _kept(project, "one", "'A1'", "pass")
    assert file.exists()
    body = f"assert not __import__('pathlib').Path({str(file)!r}).exists()"
    marked(project, "'A1'", body)
    project.runpytest_inprocess(f"--req-keep={file}").assert_outcomes(passed=1)
