"""SIGKILL around the owner's programs: what is called again says so, what was paused goes on."""

from __future__ import annotations

import json
import sys
from datetime import date
from typing import Any

import pytest
import yaml

from tests.chaos.faults import Kill
from tests.chaos.lab import BY, SCOPE, TARGET, Lab, _arrow

#: Writes down what it is told, one JSON message a line.
NOTE = "import sys; open('told.jsonl', 'a').write(sys.stdin.read() + '\\n')"


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab whose contract has a program before and one after publications; saved as `accepted`."""
    lab = Lab(tmp_path_factory.mktemp("hooks"))
    lab.make()
    path = lab.folder / "catalog" / "contracts" / f"{TARGET}.yaml"
    contract = yaml.safe_load(path.read_text(encoding="utf-8"))
    contract["hooks"] = [
        {"name": name, "on": on, "command": [sys.executable, "-c", NOTE]}
        for name, on in (("pause", "before_publish"), ("resume", "after_publish"))
    ]
    path.write_text(yaml.safe_dump(contract), encoding="utf-8")
    file = lab.manifest("a.yaml", SCOPE[0], SCOPE[1])
    lab.run = lab.must("plan", file, *BY).data["run_id"]
    for verb in ("approve", "stage", "validate", "accept"):
        lab.must(verb, lab.run, *BY)
    lab.save("accepted")
    return lab


def _told(lab: Lab) -> list[dict[str, Any]]:
    file = lab.folder / "told.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def _state(lab: Lab) -> str:
    return str(lab.oracle.log("run_event", "run_id", "to_state")[-1]["to_state"])


def _no_more_to_do(lab: Lab) -> None:
    said = len(_told(lab))
    assert lab.must("recover", "--all", *BY).data["actions"] == []
    assert len(_told(lab)) == said


@pytest.mark.req("U15", "T3", "U10")
@pytest.mark.parametrize("goes_on", ["recover", "again"])
@pytest.mark.parametrize(("moment", "nth"), [("pause", 1), ("resume", 2)])
def test_a_program_that_was_killed_before_its_record_is_called_again_with_the_same_key(
    hooked: Lab, moment: str, nth: int, goes_on: str
) -> None:
    lab = hooked
    lab.restore("accepted")
    lab.killed("publish", lab.run, *BY, hook=Kill("Hooks.call:after", nth))
    lab.must(*(("recover", "--all") if goes_on == "recover" else ("publish", lab.run)), *BY)
    assert _state(lab) == "published"
    told = [(one["on"], one.get("outcome")) for one in _told(lab)]
    before, after = ("before_publish", None), ("after_publish", "published")
    assert told == ([before, before, after] if moment == "pause" else [before, after, after])
    twice = [one for one in _told(lab) if one["idempotency_key"].endswith(moment)]
    assert twice[0] == twice[1]
    _no_more_to_do(lab)


#: From right before the pause is called to right before the run knows that it was given back.
REFUSED = [
    ("Hooks.call:before", 1),
    ("Hooks.call:after", 1),
    ("Versions.move:before", 2),
    ("Versions.move:after", 2),
    ("Hooks.call:after", 2),
    ("Runs.append:before", 2),
]


@pytest.mark.req("U15", "T3", "U10")
@pytest.mark.parametrize(("point", "nth"), REFUSED)
def test_what_was_paused_goes_on_wherever_a_publication_that_is_refused_is_killed(
    hooked: Lab, point: str, nth: int
) -> None:
    lab = hooked
    lab.restore("accepted")
    with lab.opened() as catalog:
        catalog.load_table(TARGET).append(_arrow([(date.fromisoformat(SCOPE[0]), 9, 9)]))
    lab.killed("publish", lab.run, *BY, hook=Kill(point, nth))
    lab.must("recover", "--all", *BY)
    assert _state(lab) == "accepted"
    told = [(one["on"], one.get("outcome")) for one in _told(lab)]
    assert told[-1] == ("after_publish", "given back")
    assert set(told[:-1]) <= {("before_publish", None), ("after_publish", "given back")}
    _no_more_to_do(lab)
