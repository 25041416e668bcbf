"""The contract of the program: one JSON object, exit codes, where errors end, what is loaded."""

from __future__ import annotations

import inspect
import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core import SchemaError, SchemaValidator, core_schema
from typer.testing import CliRunner, Result

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.cli.session import REASON_CODES, keep_freed_memory
from lakehouse_backfill.command_lines import SplitArguments, split_arguments
from lakehouse_backfill.domain.manifest import ReasonCode
from lakehouse_backfill.errors import ConfigError, Fault, PointerMoved, hide_texts
from tests.support.fakes.project import CHECKS, FakeProject

REPOSITORY = Path(__file__).parents[3]
#: Every command with what it needs, and the call of the project that it makes.
COMMANDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "doctor": ("doctor", (False,)),
    "doctor --spark": ("doctor", (True,)),
    "session start --idle 5": ("start_session", (5.0,)),
    "session stop": ("stop_session", ()),
    "session status": ("session_status", ()),
    "product add silver.a --owner ana": ("add_product", ("silver.a", "ana")),
    "product migrate trips --by ana": ("migrate", ("trips", "ana")),
    "product migrate trips --by ana --dry-run": ("preview_migration", ("trips",)),
    "product migrate trips --by ana --undo": ("undo_migration", ("trips", "ana")),
    "land trips": ("land", ("trips", None, None, False)),
    "land trips --reconcile": ("land", ("trips", None, None, True)),
    "land trips --listen 8080 --host 0.0.0.0 --for 60": (
        "receive",
        ("trips", 8080, "0.0.0.0", 60.0),
    ),
    "land trips --from 2026-01-01 --to 2026-02-01 --dry-run": (
        "preview_landing",
        ("trips", "2026-01-01", "2026-02-01", False),
    ),
    "replay orders --dry-run": (
        "check_events",
        ("orders", None, None, None, None, ()),
    ),
    "replay orders --dry-run --handler b --aggregate A --from 1 --to 2 --event-type x": (
        "check_events",
        ("orders", "b", "A", "1", "2", ("x",)),
    ),
    "replay orders --handler b --aggregate A --from 1 --to 2 --event-type x --event-type y": (
        "replay",
        ("orders", "b", "A", "1", "2", ("x", "y")),
    ),
    "replay orders --topic again --aggregate A": (
        "replay_into_topic",
        ("orders", "again", "A", None, None, ()),
    ),
    "rebuild orders --handler b --aggregate A --good-before 1": (
        "rebuild",
        ("orders", "b", "A", "1"),
    ),
    "new silver.a --from 1 --to 2 --reason why --reason-code late_data --by ana": (
        "new_manifest",
        ("silver.a", "1", "2", "why", "late_data", "ana", ()),
    ),
    "plan run.yaml --by ana --revise bf-0 --prove-warm-up --prove-determinism --dry-run": (
        "plan",
        (Path("run.yaml"), "bf-0", "ana", True, True, True, None, None),
    ),
    "plan run.yaml --by ana --full": (
        "plan",
        (Path("run.yaml"), None, "ana", False, False, False, None, None),
    ),
    "plan run.yaml --by ana --window 2020-01-02..2020-01-03": (
        "plan",
        (Path("run.yaml"), None, "ana", False, False, False, "2020-01-02..2020-01-03", None),
    ),
    "plan run.yaml --by ana --subset p,q": (
        "plan",
        (Path("run.yaml"), None, "ana", False, False, False, None, ("p", "q")),
    ),
    "show bf-1": ("show", ("bf-1",)),
    "try run.yaml --partition p --by ana": (
        "try_partition",
        (Path("run.yaml"), "p", "ana"),
    ),
    "approve bf-1 --by ana": ("approve", ("bf-1", "ana", "")),
    "accept bf-1 --by ana --reason right": ("accept", ("bf-1", "ana", "right")),
    "reject bf-1 --by ana --reason wrong": ("reject", ("bf-1", "ana", "wrong", "")),
    "cancel bf-1 --by ana": ("cancel", ("bf-1", "ana", "", False, "")),
    "cancel bf-1 --by ana --note late": ("cancel", ("bf-1", "ana", "", False, "late")),
    "pause bf-1 --by ana --reason late": ("pause", ("bf-1", "ana", "late", False)),
    "pause bf-1 --by ana --now": ("pause", ("bf-1", "ana", "", True)),
    "unpause bf-1 --by ana": ("unpause", ("bf-1", "ana", "")),
    "note bf-1 late --by ana": ("note", ("bf-1", "late", "ana")),
    "waive bf-1 keys_unique --by ana --reason known": (
        "waive",
        ("bf-1", "keys_unique", "ana", "known"),
    ),
    "waive bf-1 --list --by ana": ("waive", ("bf-1", None, "ana", "")),
    "run bf-1 --by ana": ("run", ("bf-1", "ana", False)),
    "run bf-1 --dry-run": ("preview_run", ("bf-1",)),
    "stage bf-1 --by ana": ("stage", ("bf-1", "ana", False)),
    "validate bf-1 --by ana --take-over": ("validate", ("bf-1", "ana", True)),
    "publish bf-1 --by ana": ("publish", ("bf-1", "ana", False, None, "")),
    "publish bf-1 --by ana --check-files": ("publish", ("bf-1", "ana", False, True, "")),
    "publish bf-1 --by ana --dry-run": ("preview_publish", ("bf-1", "ana")),
    "publish cx-1 --by ana": ("publish_cascade", ("cx-1", "ana", False, False, None)),
    "publish cx-1 --by ana --together": ("publish_cascade", ("cx-1", "ana", True, False, None)),
    "publish bf-1 bf-2 --by ana": ("publish_together", (("bf-1", "bf-2"), "ana", False, None)),
    "rollback gold.a gold.b --reason why --by ana": (
        "rollback_together",
        (("gold.a", "gold.b"), "why", "ana", False),
    ),
    "validate silver.a@accepted --suite a.json --partitions p,q": (
        "rejudge",
        ("silver.a", ("a.json",), ("p", "q")),
    ),
    "shadow open bf-1 --by ana": ("shadow_open", ("bf-1", "ana", False)),
    "shadow close bf-1 --by ana": ("shadow_close", ("bf-1", "ana", False)),
    "status": ("status", (None, False)),
    "status bf-1 --all": ("status", ("bf-1", True)),
    "list": ("list_runs", (None, (), None, None)),
    "list --product a --state staged,halted --environment prod --since 2026-01-01": (
        "list_runs",
        ("a", ("staged", "halted"), "prod", "2026-01-01"),
    ),
    "stale": ("stale", (None, None, False)),
    "stale silver.a --draft --by ana": ("stale", ("silver.a", "ana", True)),
    "lineage bronze.a --partition p": ("lineage", ("bronze.a", "p", None)),
    "lineage bronze.a --openlineage f": ("lineage", ("bronze.a", None, Path("f"))),
    "why silver.a": ("why", ("silver.a", None)),
    "log bf-1": ("log", ("bf-1",)),
    "chunks bf-1": ("chunks", ("bf-1",)),
    "diff bf-1 --by ana": ("diff", ("bf-1", None, None, None, "auto", 5, "ana", (), (), None)),
    "diff a.b@1 a.b --key x,y --where x=1 --engine spark --samples 9 --by ana": (
        "diff",
        ("a.b@1", "a.b", ("x", "y"), "x=1", "spark", 9, "ana", (), (), None),
    ),
    "diff a.b c.d --ignore p,q --tolerance v=1 --tolerance w=2% --local-limit 9 --by ana": (
        "diff",
        ("a.b", "c.d", None, None, "auto", 5, "ana", ("p", "q"), ("v=1", "w=2%"), 9),
    ),
    "diff bf-1 --attribute --partitions 2 --samples 9 --by ana": (
        "attribute",
        ("bf-1", 2, "auto", 9, "ana"),
    ),
    "dual-read bf-1 --reader app --sql q.sql --tolerance 0.1 --accept-difference why --by ana": (
        "dual_read",
        ("bf-1", "app", "q.sql", (), 0.1, "why", "ana"),
    ),
    "reconcile a.b@1 a.b": ("reconcile", ("a.b@1", "a.b")),
    "versions silver.a": ("versions", ("silver.a",)),
    "rollback silver.a --to 3 --partitions p,q --partitions r --reason why --by ana --dry-run": (
        "preview_rollback",
        ("silver.a", 3, ("p", "q", "r"), "ana"),
    ),
    "recover bf-1 --by ana": ("recover", ("bf-1", "ana", False, False)),
    "recover --all --by ana --dry-run": ("recover", (None, "ana", True, False)),
    "recover bf-1 --give-up-topic gone --by ana": ("give_up_topic", ("bf-1", "ana", "gone")),
    "maintain --by ana": ("maintain", ("ana", None, "", False)),
    "maintain --product p --by ana --dry-run": ("maintain", ("ana", "p", "", True)),
    "maintain --erasure p --reason 4711 --by ana": ("maintain", ("ana", "p", "4711", False)),
    "evidence bf-1 --export out": ("evidence", ("bf-1", Path("out"))),
    "audit verify": ("audit_verify", (None, False)),
    "audit verify --anchor": ("audit_verify", (None, True)),
    "audit verify --against heads.json": ("audit_verify", (Path("heads.json"), False)),
}


#: Commands of two words.
GROUPS = ("product", "audit", "session", "shadow")


def invoke(
    line: str | list[str], project: FakeProject | None = None, env: dict[str, str] | None = None
) -> Result:
    words, opener = line.split() if isinstance(line, str) else line, (project or FakeProject()).open
    return CliRunner().invoke(app, words, obj=opener, prog_name="lakehouse-backfill", env=env or {})


def answer(result: Result) -> dict[str, Any]:
    """Read the one object on stdout, which must be all there is."""
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert list(found) == ["command", "ok", "exit_code", "data", "warnings", "error"]
    assert found["exit_code"] == result.exit_code
    assert found["ok"] is (found["error"] is None)
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_makes_one_call_and_prints_one_json_object(line: str) -> None:
    project, (verb, args) = FakeProject(), COMMANDS[line]
    found = answer(invoke(f"--json {line}", project))
    assert project.calls == [(verb, args)]
    assert found["ok"]
    words = line.split()
    assert found["command"] == " ".join(words[: 2 if words[0] in GROUPS else 1])
    data = dict(project.answers[verb])
    assert found["warnings"] == data.pop("warnings", [])
    assert_holds(found["data"], data)


def assert_holds(found: Any, promised: Any) -> None:
    """Every promised field is there with its value; others may stand beside it."""
    if isinstance(promised, dict):
        assert promised.keys() <= found.keys()
        for name, value in promised.items():
            assert_holds(found[name], value)
    elif isinstance(promised, list):
        for one, other in zip(found, promised, strict=True):
            assert_holds(one, other)
    elif isinstance(promised, str) and str(found).startswith("2026-"):
        assert datetime.fromisoformat(found) == datetime.fromisoformat(promised)
    else:
        assert found == promised


@pytest.mark.parametrize("line", COMMANDS)
def test_every_result_is_drawn_for_people_without_a_trace_of_colour(line: str) -> None:
    result = invoke(line)
    assert (result.exit_code, result.exception) == (0, None)
    assert result.stdout.strip()
    assert "\x1b" not in result.stdout


def test_every_command_has_examples_and_every_example_is_a_command() -> None:
    for line in {*COMMANDS, "init x", "schema", "demo"}:
        words = line.split()
        command = " ".join(words[: 2 if words[0] in GROUPS else 1])
        text = invoke(f"{command} --help").stdout
        assert f"Examples:\n    lakehouse-backfill {command}" in text.replace(
            "--profile prod ", ""
        ), command


@pytest.mark.parametrize("line", ["status bf-1 --json", "status --json bf-1", "--json status bf-1"])
def test_options_of_the_program_may_stand_anywhere(line: str) -> None:
    assert answer(invoke(line))["command"] == "status"


def test_project_and_profile_reach_the_opener_from_anywhere() -> None:
    project = FakeProject()
    invoke("status --profile=prod --project /p", project)
    invoke("--quiet status", project)
    assert project.opened == [("/p", "prod", "LineProgress"), (".", None, "NullProgress")]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("plan a --json", SplitArguments(("--json",), ("plan", "a"))),
        ("--profile p plan a", SplitArguments(("--profile", "p"), ("plan", "a"))),
        ("plan --project=x a", SplitArguments(("--project=x",), ("plan", "a"))),
        ("plan -- --json", SplitArguments((), ("plan", "--", "--json"))),
        ("plan --project", SplitArguments(("--project",), ("plan",))),
    ],
)
def test_words_are_split_into_program_and_command(args: str, words: SplitArguments) -> None:
    assert split_arguments(args.split()) == words


FAULT = Fault("run.yaml", 3, "run.reason", "is missing", "add it")


class _CtrlC:
    """A value of a model at which Ctrl-C is pressed."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def _interrupted_model() -> SchemaError:
    """Return what becomes of Ctrl-C while Pydantic builds a model."""
    action = core_schema.model_field(core_schema.literal_schema([_CtrlC()]))
    with pytest.raises(SchemaError) as caught:
        SchemaValidator(core_schema.model_fields_schema({"action": action}))
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (
            PointerMoved("moved", state="nothing was published", fix="plan again"),
            "pointer-moved",
            4,
        ),
        (ConfigError("run.yaml has 1 fault", faults=(FAULT,)), "invalid-config", 2),
        (ValueError("odd"), "bug", 1),
        (KeyboardInterrupt(), "interrupted", 130),
        (_interrupted_model(), "interrupted", 130),
    ],
)
def test_an_error_ends_as_text_with_its_exit_code_or_as_the_json_object(error, code, exit_code):
    text = invoke("status", FakeProject(error))
    assert (text.exit_code, text.stdout) == (exit_code, "")
    assert text.stderr.startswith(f"{code}: ")
    assert "\n  state: " in text.stderr
    assert "Traceback" not in text.stderr
    found = answer(invoke("status --json", FakeProject(error)))
    assert (found["error"]["code"], found["data"]) == (code, {})
    assert {"code", "problem", "state", "fix"} <= found["error"].keys()


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        ("--profile prod --project here status", {}),
        ("status --profile=prod --project=here", {}),
        ("status", {"LAKEHOUSE_BACKFILL_PROFILE": "prod", "LAKEHOUSE_BACKFILL_PROJECT": "here"}),
        ("--profile prod status", {"LAKEHOUSE_BACKFILL_PROFILE": "dev",
                                   "LAKEHOUSE_BACKFILL_PROJECT": "here"}),
    ],
    ids=["before", "after", "environment", "option wins"],
)  # fmt: skip
def test_printed_commands_name_project_and_profile(line: str, environment: dict[str, str]) -> None:
    error = PointerMoved("moved", state="see lakehouse-backfill status",
                         fix="lakehouse-backfill plan --revise bf-1")  # fmt: skip
    options = "--project here --profile prod"
    failed = invoke(line, FakeProject(error), env=environment).stderr
    assert failed.splitlines()[1:] == [
        f"  state: see lakehouse-backfill {options} status",
        f"  fix:   lakehouse-backfill {options} plan --revise bf-1",
    ]
    assert answer(invoke(f"{line} --json", FakeProject(error), env=environment))["error"][
        "fix"
    ] == (f"lakehouse-backfill {options} plan --revise bf-1")
    approval = line.replace("status", "approve bf-1")
    shown = invoke(approval, FakeProject(), env=environment).stdout
    assert shown.splitlines()[-1].strip() == f"lakehouse-backfill {options} run bf-1"


def test_faults_of_declarations_are_fields_in_json() -> None:
    error = ConfigError("run.yaml has 1 fault", faults=(FAULT,))
    found = answer(invoke("--json plan run.yaml", FakeProject(error)))
    assert found["command"] == "plan"
    assert found["error"]["faults"] == [vars(FAULT)]


def test_debug_shows_the_traceback_of_a_bug() -> None:
    assert "Traceback" in invoke("--debug status", FakeProject(ValueError("odd"))).stderr


@pytest.mark.req("E7")
@pytest.mark.parametrize("words", ["status", "--json status", "--debug status"])
def test_no_text_of_a_bug_or_of_its_causes_is_shown_where_values_are_hidden(words: str) -> None:
    error = ValueError("ana@secret.example")
    error.__cause__ = KeyError("bob@secret.example")
    hide_texts()

    shown = invoke(words, FakeProject(error))

    assert shown.exit_code == 1
    assert "ValueError" in shown.output + shown.stderr
    assert "secret.example" not in shown.output + shown.stderr


@pytest.mark.parametrize(
    ("line", "command", "problem"),
    [
        ("statsu --json", "statsu", "Did you mean 'status'?"),
        ("approve --json", "approve", "Missing argument"),
        ("product add --json", "product add", "Missing argument"),
        ("product --json", "product", "no command was given"),
        ("--json", "", "Missing command."),
        ("status --nope --json", "status", "No such option"),
        ("--nope status --json", "status", "No such option"),
        ("diff bf-1 --samples many --json", "diff", "Invalid value"),
        ("plan run.yaml --subset , --json", "plan", "must name something"),
        ("rollback a.b --reason x --partitions , --json", "rollback", "must name something"),
        (
            "new a.b --from 1 --to 2 --reason x --reason-code odd --json",
            "new",
            "is not one of new_field",
        ),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_the_json_object(line, command, problem) -> None:
    result = invoke(line)
    found = answer(result)
    assert (found["command"], found["exit_code"], found["error"]["code"]) == (command, 2, "usage")
    assert problem in found["error"]["problem"]
    without = invoke(line.replace("--json", ""))
    assert (without.exit_code, without.stdout) == (2, "")
    assert without.stderr.startswith("Usage: lakehouse-backfill")
    # Without a command, the whole help is shown.
    assert problem in without.stderr or "COMMAND [ARGS]..." in without.stderr


@pytest.mark.req("V4")
def test_a_log_that_was_changed_is_exit_code_3_and_says_what_that_means() -> None:
    bad = {"events": 11, "runs": 1, "unchained": 0, "intact": False, "heads": {},
           "products": 1,
           "first_bad": "bf-1: event 2 ('approve') was edited"}  # fmt: skip
    found = answer(invoke("audit verify --json", FakeProject(answers={"audit_verify": bad})))
    assert (found["exit_code"], found["error"]["code"]) == (3, "tampered")
    assert found["data"] == bad
    text = invoke("audit verify", FakeProject(answers={"audit_verify": bad}))
    assert text.exit_code == 3
    assert "NOT as it was written" in text.stdout
    assert "bf-1: event 2 ('approve') was edited" in text.stderr


def test_closed_gates_are_exit_code_3_and_named() -> None:
    answers = {
        "validate": {"run_id": "bf-1", "state": "rejected", "passed": False, "checks": CHECKS}
    }
    found = answer(invoke("validate bf-1 --json", FakeProject(answers=answers)))
    assert found["exit_code"] == 3
    assert found["error"]["problem"] == "bf-1: 1 gate is closed: edges"
    assert found["data"]["state"] == "rejected"
    text = invoke("validate bf-1", FakeProject(answers=answers))
    assert text.exit_code == 3
    assert text.stderr.startswith("checks-failed: ")
    assert "failed" in text.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_every_call_fits_the_project_of_the_python_api(line: str) -> None:
    from lakehouse_backfill.project import Project

    project = FakeProject()
    invoke(line, project)
    verb, args, named = project.given
    inspect.signature(getattr(Project, verb)).bind(None, *args, **named)


def test_a_sick_environment_is_exit_code_6() -> None:
    checks = [{"name": "java", "ok": False, "detail": "none", "fix": "install Java 17"}]
    found = answer(invoke("doctor --json", FakeProject(answers={"doctor": {"checks": checks}})))
    assert (found["exit_code"], found["error"]["fix"]) == (6, "install Java 17")


def test_numbers_that_json_does_not_know_become_text() -> None:
    answers = {"audit_guarantees": {"checks": [{"found": {"value": float("nan")}}]}}
    found = answer(invoke("audit guarantees --json", FakeProject(answers=answers)))
    assert found["data"]["checks"][0]["found"] == {"value": "nan"}


def test_init_and_schema_need_no_project(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    made = answer(invoke(f"init {folder} --json"))
    assert "catalog/profiles.yaml" in made["data"]["files"]
    again = answer(invoke(f"init {folder} --json"))
    assert (again["exit_code"], again["error"]["code"]) == (2, "invalid-config")
    printed = json.loads(invoke("schema contract").stdout)
    assert printed == json.loads((folder / "schemas/contract.json").read_text())


def test_the_reason_codes_of_the_program_are_those_of_the_model() -> None:
    assert get_args(ReasonCode) == REASON_CODES


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("lakehouse-backfill pl", ["plan"]),
        ("lakehouse-backfill --json sta", ["stale", "stage", "status"]),
        ("lakehouse-backfill plan --rev", ["--revise"]),
        ("lakehouse-backfill shadow ", ["open", "close"]),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    typed_words = typed.split(" ")
    asked = {
        "_LAKEHOUSE_BACKFILL_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed_words) - 1),
    }
    found = CliRunner(env=asked).invoke(app, [], prog_name="lakehouse-backfill")
    assert found.stdout.split() == offered


def test_the_command_for_the_whole_plan_reaches_the_same_lake() -> None:
    lines = invoke("--project /p --profile lab plan run.yaml --by ana").stdout.splitlines()
    assert "the whole plan: lakehouse-backfill --project /p --profile lab show bf-1" in lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed_in_any_shell(shell: str) -> None:
    asked = {"_LAKEHOUSE_BACKFILL_COMPLETE": f"source_{shell}"}
    text = CliRunner(env=asked).invoke(app, [], prog_name="lakehouse-backfill").stdout
    assert f"_LAKEHOUSE_BACKFILL_COMPLETE=complete_{shell}" in text


def test_help_lists_every_command_under_its_phase() -> None:
    text = invoke("--help").stdout
    places = [text.index(f"\n{phase}:") for phase in ("Before", "During", "After", "Repair")]
    assert places == sorted(places)
    assert "rollback" in text[places[3] :]
    assert len(text.splitlines()) <= 67


def run(
    code: str, *args: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80", **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        cwd=REPOSITORY,
    )


HEAVY = ("pyspark", "great_expectations", "duckdb", "pandas")
LOADS = """
import sys
from tests.support.fakes.project import FakeProject
from lakehouse_backfill.cli.main import app
try:
    app(sys.argv[1:], obj=FakeProject().open, prog_name="lakehouse-backfill")
finally:
    sys.stderr.write(",".join(sorted(name for name in sys.modules if "." not in name)))
"""


@pytest.mark.parametrize("line", ["--help", "status", "plan --help", "--json status"])
def test_help_and_status_load_no_engine(line: str) -> None:
    done = run(LOADS, *line.split())
    loaded = done.stderr.splitlines()[-1].split(",")
    assert done.returncode == 0
    assert not set(HEAVY) & set(loaded)
    if "--help" in line:
        assert not {"rich", "yaml"} & set(loaded)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["diff", "bf-1"], ["diff", "bf-1", "--json"], ["diff", "no"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str], unbuffered: str) -> None:
    code = (
        "import sys; from tests.support.fakes.project import FakeProject; "
        "from lakehouse_backfill.cli.main import app; "
        f"app({words}, obj=FakeProject().open, prog_name='lhb')"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = run(code, stdout=writing, PYTHONUNBUFFERED=unbuffered)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 141


def test_nothing_on_stderr_moves_the_cursor() -> None:
    evil = "\x1b]0;pwned\x07\x9b2J"
    for words, error in (
        (["status"], None),
        (["log", "bf-1"], ConfigError(evil)),
        (["--debug", "log", "bf-1"], ConfigError(evil)),
        (["plan", "a", evil], None),
    ):
        warned = FakeProject().answers["status"] | {"warnings": [evil]}
        result = invoke(words, FakeProject(error, {"status": warned}))
        assert not {"\x1b", "\x07", "\x9b"} & set(result.stderr)
        assert "pwned" in result.stderr


@pytest.mark.parametrize("by", ["", "  ", "a\x1b[2J"])
def test_a_name_that_is_none_is_a_wrong_command_line(by: str) -> None:
    project = FakeProject()
    result = invoke(["approve", "bf-1", "--by", by], project)
    assert (result.exit_code, project.calls) == (2, [])
    assert "the name of who acts" in result.stderr


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")


#: Runs `evidence --open` on a fake project.
OPEN_PAGE = """
from tests.support.fakes.project import FakeProject
from lakehouse_backfill.cli.main import app
app(["evidence", "bf-1", "--open"], obj=lambda *_: FakeProject())
"""


@pytest.mark.parametrize("code", [0, 1], ids=["starts", "does not start"])
def test_evidence_open_shows_the_page_in_the_readers_browser(tmp_path: Path, code: int) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\nexit {code}\n', encoding="utf-8")
    browser.chmod(0o755)
    found = subprocess.run(
        [sys.executable, "-c", OPEN_PAGE], capture_output=True, text=True, check=False,
        env={**os.environ, "BROWSER": f"{browser} %s", "PATH": "/nonexistent"},
    )  # fmt: skip
    assert (found.returncode, seen.read_text("utf-8")) == (0, "file:///p/bf-1.html\n")
    assert ("no browser could be started" in found.stderr) is bool(code)
