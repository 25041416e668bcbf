"""Every fake of a port is held to the contract suite that its real adapter passes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Fake -> the suites that run on it and on the real adapter.
SUITES = {
    "FakeAnchor": "contract/test_anchors.py",
    "FakeCompute": "contract/test_compute_rules.py",
    "FakeCorrectionTopics": "stack/test_kafka_corrections.py",
    "FakeCorrections": "contract/test_corrections.py",
    "FakeEventTopics": "stack/test_kafka_replay.py",
    "FakeEvidence": "contract/test_control_ports.py",
    "FakeHooks": "contract/test_lake_readers_both.py",
    "FakeLake": "contract/test_lake_both.py",
    "FakeRowReader": "contract/test_lake_readers_both.py",
    "FakeRunFiles": "contract/test_lake_readers_both.py",
    "FakeRuns": "contract/test_control_ports.py",
    "FakeSecrets": "contract/test_secrets.py",
    "FakeStoredFiles": "contract/test_lake_readers_both.py",
    "FakeVersionTables": "contract/test_version_tables.py",
    "FakeVersions": "contract/test_control_ports.py",
}
#: Part of another fake, or no fake of a port.
WITHOUT_PORT = {
    "FakeProject": "the command line's view of the Python API",
    "FakeTable": "a table of FakeLake",
    "_FakeJudge": "a judge of FakeCompute",
}
#: Builds the fake and the real lake for the suites.
BUILDER = "tests.support.lakes.both"


def _fakes() -> set[str]:
    files = (TESTS / "support" / "fakes").glob("*.py")
    nodes = [node for file in files for node in ast.parse(file.read_text()).body]
    return {node.name for node in nodes if isinstance(node, ast.ClassDef) and "Fake" in node.name}


@pytest.mark.req("T13")
def test_every_fake_has_a_contract_suite():
    assert _fakes() == SUITES.keys() | WITHOUT_PORT.keys()


@pytest.mark.req("T13")
@pytest.mark.parametrize("fake", SUITES)
def test_the_suite_of_a_fake_runs_on_it(fake):
    text = (TESTS / SUITES[fake]).read_text()
    if BUILDER in text:
        text += (TESTS / "support" / "lakes" / "both.py").read_text()
    assert f"{fake}(" in text
