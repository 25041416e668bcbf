"""Wrong manifests, contracts, profiles, suites and commands: a clear answer, and nothing changed.

Each case asserts exit code, error code, field, line and fix, and that every byte of the lake is as
it was.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples.declarations import changed
from tests.support.lakes.bad_inputs import (
    CONTRACT,
    FILES,
    HELPER,
    JOB,
    MANIFEST,
    MONTHLY,
    PROFILES,
    RUN,
    SUITE,
    BadInputLake,
    environment,
    make_lake,
)

#: A fix names something to type or to edit.
ACTION = re.compile(
    r"lakehouse-backfill |--|known: |\b(write|correct|add|remove|rename|name|use|set|put|keep|swap|"
    r"ask|choose|check|widen|give|quote|raise|agree|save|did you mean|one of|it offers)\b"
)
PLAN = f"plan {RUN}"


@dataclass(frozen=True)
class Case:
    """What is wrong, what is typed, and what the answer must say.

    `edit` is (file, old text, new text); `files` whole files. `line` and `field` are those of the
    first fault; `fix` is a piece of its fix, or of the error's where no file is wrong.
    """

    command: str
    code: str
    fix: str
    exit_code: int = 2
    field: str = ""
    line: int = 0
    file: str = RUN
    edit: tuple[str, str, str] | None = None
    files: tuple[tuple[str, str | bytes | None], ...] = ()
    problem: str = ""


def manifest(old: str, new: str, field: str, line: int, fix: str, **more: Any) -> Case:
    """A wrong run manifest."""
    options = {"code": "invalid-config", "command": PLAN} | more
    return Case(edit=(RUN, old, new), field=field, line=line, fix=fix, **options)


def of_target(lines: str, field: str, line: int, fix: str, **more: Any) -> Case:
    """A wrong run manifest: with these lines more under `target`."""
    return manifest("target:", f"target:\n  {lines}", f"target.{field}", line, fix, **more)


def of(file: str, old: str, new: str, field: str, line: int, fix: str, **more: Any) -> Case:
    """Another declaration that is wrong."""
    options = {"code": "invalid-config", "command": PLAN} | more
    return Case(edit=(file, old, new), field=field, line=line, fix=fix, file=file, **options)


SOURCE = "table: bronze.events"
TRANSFORM = "file: jobs/daily/transform.py"
SCOPE = "    from: 2024-01-05\n    to: 2024-01-08\n"
AT = "    table: bronze.events\n    at: "

MANIFESTS = {
    "unknown field": manifest("  reason:", "  reasn:", "run.reasn", 4, "did you mean `reason`?"),
    "wrong type": manifest(
        "warm_up_days: 2", "warm_up_days: two", "sources.events.warm_up_days", 15,
        "a whole number"),
    "key twice": manifest(
        "  requested_by: bob", "  requested_by: bob\n  requested_by: eve",
        "run.requested_by", 4, "keep one of them"),
    "no yaml": manifest("  name: daily", "  name: daily: x", "(file)", 8, "check indentation"),
    "anchors": manifest(
        "  reason: rates were wrong", "  reason: &a [*a, *a, *a]", "(file)", 4, "write values out"),
    "a tag that calls code": manifest(
        "reason: rates were wrong", "reason: !!python/object/apply:os.system [id]",
        "(file)", 4, "write a plain value"),
    "chunk of nothing": manifest(
        "target:", "limits: {partitions_per_chunk: 0}\ntarget:",
        "limits.partitions_per_chunk", 16, "write at least 1"),
    "unbounded": manifest(
        SCOPE, "    from: 2024-01-05\n", "target.partitions.from", 19, "add `to:`"),
    "range reversed": manifest(
        SCOPE, "    from: 2024-01-08\n    to: 2024-01-05\n",
        "target.partitions.to", 20, "swap them: from: 2024-01-05"),
    "empty range": manifest(
        "to: 2024-01-08", "to: 2024-01-05", "target.partitions.to", 20, "half-open"),
    "everything excepted": manifest(
        SCOPE, SCOPE.replace("08", "06") + "    except: [2024-01-05]\n",
        "target.partitions", 17, "take a partition out of except"),
    "input shorter than warm-up": manifest(
        "from: 2024-01-01, to: 2024-01-20", "from: 2024-01-05, to: 2024-01-08",
        "sources.events.range", 14, "write from: 2024-01-02, to: 2024-01-09"),
    "range of no time column": manifest(
        "{column: day,", "{column: amount,", "sources.events.range.column", 14, "day, ts"),
    "range of no column": manifest(
        "{column: day,", "{column: dai,", "sources.events.range.column", 14, "day, ts"),
    "no such table": manifest(
        SOURCE, "table: bronze.evnets", "sources.events.table", 13,
        "name one that exists: bronze.events", code="not-found"),
    "no such snapshot": manifest(
        AT[:-9], AT + "123456789", "sources.events.at", 14, "name one that exists",
        code="not-found"),
    "no such tag": manifest(
        AT[:-9], AT + "january", "sources.events.at", 14, "write one of main", code="not-found"),
    "before the first snapshot": manifest(
        AT[:-9], AT + "1999-01-01T00:00:00Z", "sources.events.at", 14, "that is its oldest",
        code="not-found"),
    "reason that is a novel": manifest(
        "reason: rates were wrong", "reason: " + "a" * 2001, "run.reason", 4, "write a sentence"),
    "reason that moves the cursor": manifest(
        "reason: rates were wrong", 'reason: "a\\e[2Jb"', "run.reason", 4, "write a sentence"),
    "name that moves the cursor": manifest(
        "  requested_by: bob", '  requested_by: "bo\\e[2Jb"', "run.requested_by", 3, "write who"),
    "instant inside a day": manifest(
        "from: 2024-01-05\n", "from: 2024-01-05T06:00:00Z\n",
        "target.partitions.from", 19, "use 2024-01-05 or 2024-01-06"),
    "listed instant inside a day": manifest(
        SCOPE, "    values: [2024-01-05, 2024-01-06T06:00:00Z]\n",
        "target.partitions.values[1]", 19, "use 2024-01-06 or 2024-01-07"),
    "text that is no day": manifest(
        SCOPE, "    values: [soon]\n", "target.partitions.values[0]", 19, "write e.g. 2013-02-15"),
    "not a partition column": manifest(
        "    column: day\n", "    column: amount\n",
        "target.partitions.column", 18, "scope by one of: day", code="unsupported"),
    "unknown transform": manifest("name: daily", "name: dayly", "transform.name", 8, "it offers"),
    "version that the code lacks": manifest(
        "version: 1.0.0", "version: 1.1.0", "transform.version", 9, "it offers daily 1.0.0"),
    "file outside by ..": manifest(
        TRANSFORM, "file: ../../etc/passwd.py", "transform.file", 10, "without .."),
    "file outside by an absolute path": manifest(
        TRANSFORM, "file: /etc/hosts.py", "transform.file", 10, "relative to the project"),
    "file outside by a link": manifest(
        TRANSFORM, "file: jobs/daily/link.py", "transform.file", 10, "relative to the project"),
    "file name with a zero byte": manifest(
        TRANSFORM, 'file: "jobs/a\\0.py"', "transform.file", 10, "relative to the project"),
    "hostile table": manifest(
        SOURCE, 'table: "a.b; DROP TABLE x"', "sources.events.table", 13,
        "name one that exists: bronze", code="not-found"),
    "table in a backtick": manifest(
        SOURCE, 'table: "bronze.`events"', "sources.events.table", 13, "namespace.table"),
    "table that looks alike": manifest(
        SOURCE, "table: brоnze.events", "sources.events.table", 13,  # noqa: RUF001
        "name one that exists: bronze", code="not-found"),
    "table name too long": manifest(
        SOURCE, "table: bronze." + "e" * 200, "sources.events.table", 13,
        "name one that exists: bronze.events", code="not-found"),
    "hostile predicate": of_target(
        "row_predicate: \"1=1; DROP TABLE x\"", "row_predicate", 17, "fields below it, indented"),
    "predicate on no column": of_target(
        "row_predicate: {amuont: 10}", "row_predicate.amuont", 17, "name one of: ts, id, amount"),
    "predicate with a hostile column": of_target(
        "row_predicate: {\"id` = 1 OR `id\": 10}", "row_predicate.id` = 1 OR `id", 17,
        "name one of: ts, id, amount"),
    "predicate on the partitions": of_target(
        "row_predicate: {day: 2024-01-05}", "row_predicate.day", 17,
        "write its values in target.partitions"),
    "predicate with a value of another type": of_target(
        "row_predicate: {id: [7, seven]}", "row_predicate.id", 17, "write a whole number"),
    "predicate of no column": of_target(
        "row_predicate: {}", "row_predicate", 17, "name one with its values"),
    "predicate of an append": of_target(
        "publish_mode: append\n  row_predicate: {id: 7}", "row_predicate", 18,
        "remove target.row_predicate", code="unsupported"),
    "append where rows are": of_target(
        "publish_mode: append", "partitions", 18, "target.partitions.except", code="conflict",
        exit_code=4,
        problem="hold 3 rows in snapshot"),
    "merge without a version": of_target(
        "publish_mode: merge", "merge", 16, "add target.merge: {version: COLUMN}"),
    "merge by no column": of_target(
        "publish_mode: merge\n  merge: {version: amuont}", "merge.version", 18,
        "use one of: day, ts, amount"),
    "merge by the time of processing": of_target(
        "publish_mode: merge\n  merge: {version: produced_at}", "merge.version", 18, "use one of",
        problem="a rerun always wins"),
    "merge by the key": of_target(
        "publish_mode: merge\n  merge: {version: id}", "merge.version", 18, "use one of"),
    "deletions of a column of the table": of_target(
        "publish_mode: merge\n  merge: {version: ts, deleted: amount}", "merge.deleted", 18,
        "remove target.merge.deleted"),
    "merge beside another mode": of_target(
        "merge: {version: ts}", "merge", 17, "write target.publish_mode: merge"),
    "versions of a product that is followed": of_target(
        "publish_mode: versioned", "publish_mode", 17,
        "write target.publish_mode: replace_partitions",
        code="unsupported"),
    "mode of another product": of_target(
        "publish_mode: pointer_swap", "publish_mode", 17,
        "write target.publish_mode: replace_partitions",
        code="unsupported"),
    "side effects": manifest(
        "validation:", "safety: {side_effects: true}\nvalidation:",
        "safety.side_effects", 21, "write false", code="unsupported"),
    "a column that is dropped": of_target(
        "schema_change: [{drop: amount}]", "schema_change[0].drop", 17, "add"),
    "a column that is narrowed": of_target(
        "schema_change: [{widen: amount, to: int}]", "schema_change[0]", 17, "write a wider type"),
    "a required column that is added": of_target(
        "schema_change: [{add: note, type: string, required: true}]", "schema_change[0].required",
        17, "rename"),
    "a column that is there already": of_target(
        "schema_change: [{add: Amount, type: long}]", "schema_change[0]", 17, "use another name"),
    "a renamed column of the key": of_target(
        "schema_change: [{rename: id, to: number}]", "schema_change[0]", 17,
        "choose another column"),
    "a renamed partition source": of_target(
        "schema_change: [{rename: day, to: date}]", "schema_change[0]", 17,
        "choose another column"),
    "columns of a run in steps": of_target(
        "progressive: {}\n  schema_change: [{add: note, type: string}]", "progressive", 17,
        "remove target.schema_change", code="unsupported"),
    "unknown gate": manifest(
        "validation:", "validation:\n  gates: {schema: report}",
        "validation.gates.schema", 22, "keys_unique"),
    "over a limit": manifest(
        "validation:", "safety: {max_bytes: 1}\nvalidation:",
        "safety.max_bytes", 21, "raise safety.max_bytes", code="limit-exceeded", exit_code=3),
    "past its deadline": manifest(
        "  requested_by: bob", "  requested_by: bob\n  deadline: 2020-01-01T00:00:00Z",
        "run.deadline", 4, "agree on a later run.deadline", code="limit-exceeded", exit_code=3),
    "bootstrap of a full product": manifest(
        "  requested_by: bob", "  kind: bootstrap\n  requested_by: bob",
        "run.kind", 3, "write run.kind: restatement"),
    "no such product": manifest(
        "product: silver.daily", "product: silver.dayly",
        "product", 6, "lakehouse-backfill product add", code="not-found"),
    "a day inside a month": of(
        MONTHLY, "from: 2024-01-01\n", "from: 2024-01-15\n",
        "target.partitions.from", 19, "use 2024-01 or 2024-02", command=f"plan {MONTHLY}"),
}  # fmt: skip
FILES_OF_OTHERS = {
    "no manifest": Case("plan jobs/none.yaml", "invalid-config", "check the path"),
    "manifest of bytes": Case(
        PLAN, "invalid-config", "save the file as UTF-8", field="(file)", line=2,
        files=((RUN, b"api_version: x\nrun: \xff\xfe\n"),)),
    "manifest of 2 MB": Case(
        PLAN, "invalid-config", "a short text file", files=((RUN, "# " + "x" * 2_000_000),)),
    "manifest twice in a file": Case(
        PLAN, "invalid-config", "remove everything from the second", field="(file)", line=25,
        files=((RUN, MANIFEST + "---\n" + MANIFEST),)),
    "suite that is no JSON": Case(
        PLAN, "invalid-config", '"expectations": [', field="(file)", line=3, file=SUITE,
        files=((SUITE, '{"name": "x",\n "expectations":\n oops}'),)),
    "suite without expectations": Case(
        PLAN, "invalid-config", '"expectations": [', field="(file)", line=1, file=SUITE,
        files=((SUITE, '{"name": "x"}'),)),
    "unknown expectation": of(
        SUITE, "expect_column_values_to_not_be_null", "expect_column_values_to_not_be_nul",
        "expectations[1]", 5, "write expect_column_values_to_not_be_null"),
    "suite of the contract that is gone": of(
        CONTRACT, "classification:", "suites: [{file: expectations/dailly.json}]\nclassification:",
        "suites[0].file", 16, "did you mean `daily.json`?"),
    "key that is no column": of(
        CONTRACT, "key: [id]", "key: [idd]", "key[0]", 6, "did you mean `id`?"),
    "sql type": of(
        CONTRACT, "name: amount, type: long", "name: amount, type: bigint",
        "columns[3].type", 13, "write long"),
    "lineage columns that the table lacks": Case(
        PLAN, "invalid-config", "lineage_columns: false",
        edit=(CONTRACT, "classification:", "lineage_columns: true\nclassification:")),
    "no contract": Case(
        PLAN, "not-found", "lakehouse-backfill product add", field="product", line=6,
        files=((CONTRACT, None),)),
    "profile of another kind": of(
        PROFILES, "environment: prod", "environment: production",
        "profiles.prod.environment", 12, "write one of: dev, prod"),
    "default that is no embedded lake": Case(
        "status", "invalid-config", "add --profile prod",
        edit=(PROFILES, "default: embedded", "default: prod")),
    "default lake outside the project that is not there": of(
        PROFILES, "${project}/.lakehouse/catalog.db", "/tmp/no-such-folder/shared.db",
        "profiles.embedded.catalog.uri", 9, "correct catalog.uri",
        code="not-found", command="status"),
    "mistyped file of the catalog": of(
        PROFILES, "catalog.db", "catalogue.db",
        "profiles.embedded.catalog.uri", 9, "correct catalog.uri",
        code="not-found", command="status", problem="there is no lake at"),
    "no folder of the catalog": of(
        PROFILES, ".lakehouse/catalog.db", ".lakehose/catalog.db",
        "profiles.embedded.catalog.uri", 9, "correct catalog.uri",
        code="not-found", command="status"),
    "uri of the catalog that is none": of(
        PROFILES, "sqlite:///${project}/.lakehouse/catalog.db", "catalog.db",
        "profiles.embedded.catalog.uri", 9, "write e.g. uri: sqlite:///",
        command="--profile embedded status", problem="lacks the form scheme://place"),
    "uri of the catalog of an unknown database": of(
        PROFILES, "sqlite:///${project}", "oracle9://${project}",
        "profiles.embedded.catalog.uri", 9, "write e.g. uri: sqlite:///",
        command="--profile embedded status", problem="oracle9"),
    "a file reader that is none": of(
        PROFILES, "type: sql", "type: sql\n      py-io-impl: os.system",
        "profiles.embedded.catalog.py-io-impl", 9, "write pyiceberg.io.pyarrow.PyArrowFileIO",
        command="status", problem="os.system"),
    "type of the catalog that is none": of(
        PROFILES, "type: sql", "type: sqll",
        "profiles.embedded.catalog.type", 8, "write one of rest", command="status", problem="sqll"),
    "no profiles": Case(
        "status", "not-found", "lakehouse-backfill init", files=((PROFILES, None),)),
}  # fmt: skip
CHANGED_AFTER_APPROVAL = {
    "suite": Case(
        "stage {approved}", "approval-missing", "--revise {approved}", exit_code=3,
        edit=(SUITE, '"column": "id"', '"column": "day"'),
        problem=f"{SUITE} changed since {{approved}} was planned"),
}  # fmt: skip
OTHER_CODE = {
    name: Case(
        PLAN, "invalid-config", "raise the version", field="transform.version", line=9,
        edit=edit, problem=f": {edit[0]} differs",
    )
    for name, edit in {
        "version reused with other code": (JOB, "return events", "return events.limit(0)"),
        "imported module": (HELPER, "RATE = 2", "RATE = 3"),
    }.items()
}  # fmt: skip
COMMANDS = {
    "unknown run": Case("status bf-nope", "not-found", "lakehouse-backfill status"),
    "unknown run to approve": Case("approve bf-nope --by ana", "not-found", "lakehouse-backfill"),
    "unknown run to revise": Case(
        f"{PLAN} --revise bf-nope", "not-found", "lakehouse-backfill status"),
    "run of another product to revise": Case(
        f"{PLAN} --revise {{open}}", "invalid-config", "plan without --revise"),
    "unknown product": Case(
        "versions silver.dayly", "not-found", "product add",
        problem="did you mean `silver.daily`?"),
    "product without versions": Case(
        "versions silver.daily", "not-found", "lakehouse-backfill status"),
    "product that is a path": Case(
        "versions ../../etc/passwd", "not-found", "lakehouse-backfill product add"),
    "rollback of an unknown product": Case(
        "rollback silver.dayly --reason x", "not-found", "lakehouse-backfill product add"),
    "rollback to an unknown version": Case(
        "rollback silver.daily --to 7 --reason x", "not-found", "lakehouse-backfill"),
    "approval by the wrong person": Case(
        "approve {planned} --by eve", "not-allowed", "ask one of them", exit_code=3),
    "approval with an open checklist": Case(
        "approve {open} --by ana", "blocked", "catalog/contracts/silver.open.yaml", exit_code=3,
        problem="write classification and retention_days in catalog/contracts/silver.open.yaml"),
    "publication before acceptance": Case(
        "publish {approved} --by ana", "illegal-move", "lakehouse-backfill run {approved}"),
    "acceptance before staging": Case(
        "accept {approved} --by ana", "illegal-move", "lakehouse-backfill run {approved}"),
    "staging before approval": Case(
        "stage {planned}", "approval-missing", "lakehouse-backfill approve {planned}", exit_code=3),
    "pinned input that has expired": Case(
        "stage {leased}", "not-found", "--revise {leased}", problem="bronze.leased@{expired}"),
    "condition that ends the query": Case(
        "diff silver.daily silver.daily --where '1=1; DROP TABLE silver.daily'",
        "invalid-config", "write one boolean expression"),
    "condition with a subquery": Case(
        "diff silver.daily silver.daily --where 'id IN (SELECT 1)'",
        "invalid-config", "write one boolean expression", problem="holds a subquery"),
    "condition that reads a file": Case(
        "diff silver.daily silver.daily --where \"read_text('/etc/passwd') IS NULL\"",
        "invalid-config", "write one boolean expression"),
    "condition on no column": Case(
        "diff silver.daily silver.daily --key id --where 'idd = 1'", "invalid-config",
        "use one of"),
    "hostile table to compare": Case(
        "diff 'silver.daily; DROP TABLE x' silver.daily", "not-found",
        "name one that exists: silver.daily"),
    "table to compare that is not there": Case(
        "diff silver.daily@1 silver.daily", "not-found", "name one that exists"),
    "unknown engine": Case(
        "diff silver.daily silver.daily --key id --engine gpu", "invalid-config", "choose auto"),
    "unknown profile": Case("--profile prd status", "invalid-config", "--profile prod"),
    "unknown command": Case("pblish x", "usage", "add --help"),
    "unknown option": Case("status --al", "usage", "add --help"),
    "draft of a reversed range": Case(
        "new silver.daily --from 2024-02-01 --to 2024-01-01 --reason x",
        "invalid-config", "write --from 2024-01-01 --to 2024-02-01"),
    "schema of nothing": Case("schema plan", "not-found", "use one of: manifest, contract"),
}  # fmt: skip
CASES = MANIFESTS | FILES_OF_OTHERS | CHANGED_AFTER_APPROVAL | OTHER_CODE | COMMANDS


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> BadInputLake:
    folder = tmp_path_factory.mktemp("bad input")
    found = make_lake(folder)
    (folder / "jobs/daily/link.py").symlink_to("/etc/hosts")
    return found


@pytest.fixture(autouse=True)
def unchanged(lake: BadInputLake) -> Iterator[None]:
    """Whatever a test does, every byte of catalog and warehouse is as it was."""
    before, rows = lake.digests(), lake.rows()
    yield
    assert (lake.digests(), lake.rows()) == (before, rows)


def split(command: str) -> list[str]:
    return [part.strip("'\"") for part in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", command)]


def check(
    case: Case, exit_code: int, answer: dict[str, Any], words: dict[str, Any], folder: Path
) -> None:
    """Compare an answer about the project in `folder` with what the case asks of it."""
    error = answer["error"]
    assert error is not None, answer
    assert (exit_code, answer["exit_code"], error["code"]) == (
        case.exit_code, case.exit_code, case.code,
    ), error  # fmt: skip
    assert error["state"]
    assert ACTION.search(error["fix"]), error["fix"]
    assert case.problem.format(**words) in error["problem"]
    fix = case.fix
    for word, value in words.items():
        fix = fix.replace(f"{{{word}}}", str(value))
    if not case.line:
        # A printed command names the project, since the reader may stand elsewhere.
        said = (error["fix"] + error["problem"]).replace(f" --project '{folder}'", "")
        assert fix in said
        return
    fault = next(found for found in error["faults"] if found["field"] == case.field)
    assert (fault["file"], fault["line"]) == (case.file, case.line)
    assert fix in fault["fix"]
    assert ACTION.search(fault["fix"]), fault["fix"]
    assert f"{case.file}:{case.line}: {case.field}: " in error["problem"]


@pytest.mark.req("M2")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_answered_with_what_to_type_and_changes_nothing(
    lake: BadInputLake, case: Case
) -> None:
    words = {**lake.runs, "expired": lake.expired}
    files: dict[str, str | bytes | None] = dict(case.files)
    if case.edit is not None:
        file, old, new = case.edit
        files[file] = changed(FILES[file], old, new)
    with lake.holding(files):
        exit_code, answer = lake.run(*split(case.command.format(**words)))
    check(case, exit_code, answer, words, lake.folder)


def test_there_are_cases_of_every_sort() -> None:
    assert len(CASES) >= 60
    assert {case.code for case in CASES.values()} >= {
        "invalid-config", "not-found", "unsupported", "illegal-move", "blocked", "not-allowed",
        "approval-missing", "limit-exceeded", "usage",
    }  # fmt: skip


def test_the_right_declarations_plan(lake: BadInputLake) -> None:
    """Otherwise every case above would prove nothing."""
    for manifest_file in (RUN, MONTHLY):
        exit_code, answer = lake.run("plan", manifest_file, "--dry-run")
        assert (exit_code, answer["error"]) == (0, None)


def _child(lake: BadInputLake, *words: str, before: str = "", **env: str) -> Any:
    """Run a command in a process of its own, after some Python lines."""
    code = f"{before}\nfrom lakehouse_backfill.cli.main import run\nrun()"
    return subprocess.run(
        [sys.executable, "-c", code, "--project", str(lake.folder), "--json", *words],
        capture_output=True, text=True, timeout=120, check=False, env=environment(**env),
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["stage", "run"])
def test_without_java_nothing_is_started(lake: BadInputLake, verb: str) -> None:
    done = _child(lake, verb, lake.runs["approved"], LAKEHOUSE_BACKFILL_JAVA_HOME="/nonsense")
    case = Case("", "java-missing", "unset it", exit_code=6, problem="which holds no Java 17 or 21")
    check(case, done.returncode, json.loads(done.stdout), {}, lake.folder)


@pytest.mark.parametrize("command", ["status", f"plan {RUN}"])
def test_a_locked_catalog_is_waited_for_and_then_named(lake: BadInputLake, command: str) -> None:
    database = sqlite3.connect(lake.folder / ".lakehouse/catalog.db", isolation_level=None)
    with closing(database) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        exit_code, answer = lake.run(*command.split())
    case = Case("", "catalog-down", "try again", exit_code=6, problem="database is locked")
    check(case, exit_code, answer, {}, lake.folder)


#: The files may not grow, as on a full disk: writing fails, whoever the user is.
FULL_DISK = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
"""


def test_a_full_disk_leaves_what_is_there(lake: BadInputLake) -> None:
    before = lake.digests()
    with lake.holding({"jobs/daily/full.yaml": changed(MANIFEST, "rates were", "rates are")}):
        done = _child(lake, "plan", "jobs/daily/full.yaml", before=FULL_DISK)
    answer = json.loads(done.stdout)
    case = Case("", "catalog-down", "try again", exit_code=6, problem="File too large")
    check(case, done.returncode, answer, {}, lake.folder)
    after = lake.digests()
    assert {name: after.get(name) for name in before} == before
    for name in set(after) - set(before):  # what was begun, and belongs to no table
        assert (lake.folder / ".lakehouse" / name).stat().st_size == 0
        (lake.folder / ".lakehouse" / name).unlink()


@pytest.mark.req("P2")
def test_a_warm_up_before_the_first_year_is_cut_off_by_the_calendar(lake: BadInputLake) -> None:
    text = MANIFEST.replace("from: 2024-01-01,", "from: 0001-01-01,")
    text = changed(text, SCOPE, "    from: 0001-01-01\n    to: 0001-01-03\n")
    with lake.holding({"jobs/daily/early.yaml": text}):
        exit_code, answer = lake.run("plan", "jobs/daily/early.yaml", "--dry-run")
    assert (exit_code, answer["error"]) == (0, None)
    assert answer["warnings"] == [
        "2 of 2 partitions hold no rows now: 0001-01-01, 0001-01-02",
        "the pinned input holds no rows in the range: the output would be empty",
    ]


@pytest.mark.req("P1")
def test_empty_partitions_of_the_future_are_warned_of(lake: BadInputLake) -> None:
    text = MANIFEST.replace("2024-01-20", "2999-02-01")
    text = changed(text, SCOPE, "    from: 2999-01-05\n    to: 2999-01-07\n")
    text += "safety: {incomplete_input: {by: ana, reason: a rehearsal}}\n"
    with lake.holding({"jobs/daily/late.yaml": text}):
        _, answer = lake.run("plan", "jobs/daily/late.yaml", "--dry-run")
    assert answer["warnings"] == [
        "2 of 2 partitions hold no rows now: 2999-01-05, 2999-01-06",
        "partitions lie in the future: 2999-01-05, 2999-01-06",
        "the pinned input holds no rows in the range: the output would be empty",
    ]


def test_a_lake_that_is_not_there_is_not_made(lake: BadInputLake, tmp_path: Path) -> None:
    other = str(tmp_path / "deep" / "lake.db")
    with lake.holding(
        {PROFILES: FILES[PROFILES].replace("${project}/.lakehouse/catalog.db", other)}
    ):
        exit_code, answer = lake.run("--profile", "embedded", "status")
    assert (exit_code, answer["error"]["code"]) == (2, "not-found")
    assert list(tmp_path.iterdir()) == []
