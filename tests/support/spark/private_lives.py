"""A whole life of a product with restricted columns, by the command line, in a process of its own.

python -m tests.support.spark.private_lives FOLDER ACT...
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer
import yaml

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.cli.session import Session
from lakehouse_backfill.fault_points import install_hook
from lakehouse_backfill.project import Project
from tests.support.quick_commands import build_once
from tests.support.quick_pyiceberg import make_quick
from tests.support.spark.declared import QUICK_JAVA

PRODUCT, SOURCE = "gold.people", "raw.people"
#: No planted text is without it, and nothing else holds it.
MARK = "qzx7"
KEY_VARIABLE = "LHB_TEST_MASK_KEY"
#: Each day costs; so few days with many people.
DAYS = tuple(date(2024, 1, day) for day in range(1, 4))
PEOPLE = 90

JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="people", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.select("day", "person", "email", "city", "note", "home", "amount")
"""
SQL_JOB = """-- name: town
-- version: 1.0.0
-- inputs: src
SELECT day, person, email, city, note, home, amount FROM {src} WHERE city = 'town 3'
"""
#: Rejects rows for a reason that stands in the job, and for one that quotes a value.
REJECTING_JOB = """-- name: strict
-- version: 1.0.0
-- inputs: src
SELECT day, person, email, city, note, home, amount,
  CASE WHEN amount % 10 = 3 THEN 'odd amount'
       WHEN amount % 10 = 4 THEN concat('bad mail ', email) END AS _reject_reason
FROM {src}
"""
SUITE = {
    "name": "people",
    "expectations": [
        {"type": "expect_column_values_to_match_regex",
         "kwargs": {"column": "person", "regex": "^nobody$"}, "severity": "warning"},
        {"type": "expect_column_distinct_values_to_be_in_set",
         "kwargs": {"column": "person", "value_set": ["nobody"]}},
        {"type": "expect_column_values_to_be_unique",
         "kwargs": {"column": "city"}, "severity": "warning"},
    ],
}  # fmt: skip
COLUMNS = [
    ("day", "date"), ("person", "string"), ("email", "string"), ("city", "string"),
    ("note", "string"),
    ("home", "struct<8: street: optional string, 9: town: optional string>"), ("amount", "long"),
]  # fmt: skip
_UNCOMPILED = {
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip
RESTRICTED = ("person", "email", "note", "home")
SCHEMA = pa.schema([
    ("day", pa.date32()), ("person", pa.string()), ("email", pa.string()), ("city", pa.string()),
    ("note", pa.string()),
    ("home", pa.struct([("street", pa.string()), ("town", pa.string())])),
    ("amount", pa.int64()),
])  # fmt: skip


def value_of(kind: str, number: int, version: int) -> str:
    """One planted value; short, as Iceberg cuts its bounds after 16 characters."""
    return f"{MARK}{kind}{version}{number:05d}"


def rows(version: int) -> pa.Table:
    """Rows with 3 planted values each, which another version changes for every second row."""
    found = []
    for at, day in enumerate(DAYS):
        for number in range(at * PEOPLE, (at + 1) * PEOPLE):
            changed = version if number % 2 else 1
            found.append({
                "day": day, "person": value_of("p", number, 1),
                "email": value_of("e", number, changed), "city": f"town {number % 7}",
                "note": value_of("n", number, changed),
                "home": {"street": value_of("s", number, changed), "town": f"town {number % 7}"},
                "amount": number + changed,
            })  # fmt: skip
    return pa.Table.from_pylist(found, schema=SCHEMA)


class Life:
    """The project's folder, the commands that were given, and what they printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs = folder / "outputs"
        self.shown_otherwise = io.StringIO()
        for name in ("outputs", "events", "local", "jobs", "expectations", "catalog/contracts"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.profile(compiles=True)
        self.write("jobs/people.py", JOB)
        self.write("jobs/town.sql", SQL_JOB)
        self.write("jobs/strict.sql", REJECTING_JOB)
        self.write("expectations/people.json", json.dumps(SUITE))
        self.contract(PRODUCT, {
            "person": {"classification": "restricted"},
            "email": {"classification": "restricted", "mask": "hash"},
            "note": {"classification": "restricted", "mask": "truncate", "length": 3},
            "home": {"classification": "restricted"},
        })  # fmt: skip
        self.contract(SOURCE, {name: {"classification": "restricted"} for name in RESTRICTED})

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def profile(self, *, compiles: bool) -> None:
        """Declare the profile; compiled code of queries holds the values that they name."""
        secret = f"{MARK}-the-password"
        profile = {
            "catalog": {
                "name": "lake", "type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db",
                "warehouse": f"file://{self.folder}/warehouse", "credential": secret,
            },
            "spark": {
                "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2",
                "spark.hadoop.fs.s3a.secret.key": secret,
                "spark.local.dir": f"{self.folder}/local",
                "spark.sql.adaptive.enabled": "false",
                **({} if compiles else _UNCOMPILED),
                "spark.driver.extraJavaOptions": QUICK_JAVA,
                "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
                "spark.eventLog.dir": f"file://{self.folder}/events",
            },
        }  # fmt: skip
        self.write("catalog/profiles.yaml", yaml.safe_dump({
            "api_version": "lakehouse-backfill/v1", "default": "dev", "profiles": {"dev": profile},
        }))  # fmt: skip

    def contract(self, table: str, columns: dict[str, Any]) -> None:
        declared = {
            "api_version": "lakehouse-backfill/v1", "product": table, "table": table,
            "description": "People.", "owner": "lead", "key": ["day", "person"],
            "partitioning": [{"column": "day"}], "lineage_columns": False,
            "columns": [{"name": name, "type": kind} for name, kind in COLUMNS],
            "consumers": [], "classification": "internal", "retention_days": "unlimited",
            "measures": [{"name": "amount", "sum": "amount"}],
            "hooks": [
                {"name": f"keep_{moment}", "on": moment, "command": ["tee", kept]}
                for moment in ("before_publish", "after_publish", "after_rollback")
                for kept in [f"{self.folder}/outputs/hook_{moment}.json"]
            ],
            "corrections": {"table": "gold.people_events"},
            "privacy": {
                "columns": columns,
                "key": {"env": KEY_VARIABLE, "version": "1"},
                "purposes": {"repair": ["ann"]},
            },
        }  # fmt: skip
        self.write(f"catalog/contracts/{table}.yaml", yaml.safe_dump(declared))

    def manifest(self, name: str, reason: str, **changes: Any) -> str:
        declared = {
            "api_version": "lakehouse-backfill/v1",
            "run": {
                "requested_by": "ann", "reason": reason, "reason_code": "bug_fix",
                "purpose": "repair", **changes.pop("run", {}),
            },
            "product": PRODUCT,
            "transform": {
                "name": name, "version": "1.0.0",
                "file": changes.pop("file", f"jobs/{name}.py"),
            },
            "sources": {"src": {
                "table": SOURCE,
                "range": {"column": "day", "from": "2023-12-01", "to": "2024-02-01"},
            }},
            "target": {
                "partitions": {"column": "day", "from": "2024-01-01", "to": "2024-01-06"},
                **changes.pop("target", {}),
            },
            "validation": {"edge_partitions": 0, **changes.pop("validation", {})},
        } | changes  # fmt: skip
        self.write(f"jobs/{name}.yaml", yaml.safe_dump(declared))
        return f"jobs/{name}.yaml"

    def give(self, *command: str, code: int | None = 0, as_json: bool = True) -> dict[str, Any]:
        """Give a command; keep what it prints, as JSON and as text; return its data.

        Only as text it tells its progress.
        """
        number = len(list(self.outputs.glob("*.txt")))
        out, err, ended = io.StringIO(), io.StringIO(), 0
        self.shown_otherwise = io.StringIO()
        if {"run", "stage", "validate", "--attribute"} & {*command} and "--by" not in command:
            command = (*command, "--by", "ann")  # who may replay the data
        words = ["--project", str(self.folder), *(["--json"] if as_json else []), *command]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                app(words, prog_name="lakehouse-backfill")
            except SystemExit as stop:
                ended = int(stop.code or 0)
        other = self.shown_otherwise.getvalue()
        text = f"{' '.join(command)}\n{out.getvalue()}\n{err.getvalue()}\n{other}"
        self.write(f"outputs/{number:02d}.txt", text)
        assert code is None or ended == code, text
        return json.loads(out.getvalue() if as_json else other)

    def show_both_ways(self) -> None:
        """Let each result that a command of this process prints be kept in its other form too."""
        show = Session.show

        def show_both(session: Session, command: str, result: Any) -> None:
            kept = self.shown_otherwise
            with (
                contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept),
                contextlib.suppress(typer.Exit),
            ):  # fmt: skip
                show(replace(session, json=not session.json), command, result)
            show(session, command, result)

        Session.show = show_both  # type: ignore[method-assign]

    def type(self, *command: str) -> str:
        """Give a command in a process of its own, as in a shell; keep and return what it says."""
        program = "from lakehouse_backfill.cli.main import run; run()"
        done = subprocess.run(
            [sys.executable, "-c", program, "--project", str(self.folder), *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, timeout=400,
        )  # fmt: skip
        number = len(list(self.outputs.glob("*.txt")))
        self.write(f"outputs/{number:02d}.txt", done.stdout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def pour(self, version: int) -> None:
        catalog = Project.open(self.folder).wiring.catalog
        catalog.create_namespace_if_not_exists("raw")
        properties = {"write.metadata.metrics.default": "counts"}
        table = catalog.create_table_if_not_exists(SOURCE, SCHEMA, properties=properties)
        table.overwrite(rows(version))

    def plan(self, manifest: str) -> str:
        run = str(self.give("plan", manifest, "--by", "ann")["data"]["run_id"])
        self.give("approve", run, "--by", "lead")
        return run

    def publish(self, run: str) -> None:
        self.give("accept", run, "--by", "lead")
        self.give("publish", run, "--by", "lead")


def begin(life: Life) -> None:
    """Create the product; write down golden rows that it does not have."""
    Project.open(life.folder).wiring.create_lake()
    life.pour(1)
    first = life.plan(life.manifest("people", "the beginning"))
    life.give("run", first)
    life.publish(first)
    life.pour(2)
    wrong = [
        f"{day},{value_of('p', number, 1)},{value_of('n', number, 9)}"
        for number, day in ((1, DAYS[0]), (PEOPLE + 1, DAYS[1]))
    ]
    life.write("expectations/golden.csv", "\n".join(["day,person,note", *wrong]) + "\n")


def live(life: Life) -> None:
    """Restate the product with failing checks, correct it, roll it back."""
    folder = life.folder
    second = life.plan(life.manifest(
        "people", "corrected mails",
        validation={
            "golden": "expectations/golden.csv", "suites": [{"file": "expectations/people.json"}],
        },
    ))  # fmt: skip
    life.give("stage", second)
    life.give("validate", second, code=3)
    life.give("diff", second, "--samples", "200")
    life.give("diff", second, "--attribute", as_json=False)
    life.give("diff", second, "--engine", "spark")
    listed = life.give("waive", second, "--list", code=None)
    gates = [check["name"] for check in listed["data"]["gates"]] if listed.get("data") else []
    assert gates, listed
    for gate in gates:
        life.give("waive", second, gate, "--by", "lead", "--reason", "a test")
    life.give("dual-read", second, "--reader", "bi", "--columns", "person,note")
    life.publish(second)
    old = Project.open(folder).wiring.catalog.load_table(PRODUCT).snapshots()[-2].snapshot_id
    for words in (
        ("status", second), ("log", second), ("chunks", second), ("evidence", second),
        ("verify", second, "--deep"), ("verify", second), ("reproduce", second, "--by", "ann"),
        ("versions", PRODUCT), ("audit", "verify"), ("validate", f"{PRODUCT}@accepted"),
        ("diff", f"{PRODUCT}@{old}", PRODUCT), ("reconcile", PRODUCT, PRODUCT),
        ("rollback", PRODUCT, "--reason", "wrong", "--by", "lead"),
        ("maintain", "--dry-run"),
    ):  # fmt: skip
        life.give(*words)
    events = life.plan(life.manifest(
        "people", "events", target={"publish_mode": "correction_events"},
    ))  # fmt: skip
    life.give("run", events)
    life.publish(events)


def publish_in_other_ways(life: Life) -> None:
    """Publish rows of one town, by keys, step by step and cut off, and past a live commit."""
    life.give("rollback", PRODUCT, "--reason", "events are taken back", "--by", "lead")
    life.pour(3)
    for changes in (
        {"name": "town", "file": "jobs/town.sql", "target": {"row_predicate": {"city": "town 3"}}},
        {"name": "people", "target": {"publish_mode": "merge", "merge": {"version": "amount"}}},
    ):
        run = life.plan(life.manifest(reason="in another way", **changes))
        life.give("run", run)
        life.publish(run)
    life.pour(4)
    steps = life.plan(life.manifest(
        "people", "step by step", target={"progressive": {"partitions_per_step": 1}},
    ))  # fmt: skip
    life.give("run", steps)
    life.give("accept", steps, "--by", "lead")
    install_hook(CutOff("Publisher.swap:committed", 2))
    try:
        life.give("publish", steps, "--by", "lead", code=130)
    finally:
        install_hook(None)
    life.give("status", steps)
    life.give("recover", steps, "--by", "lead")
    life.pour(5)
    late = life.plan(life.manifest(
        "people", "meanwhile", safety={"on_conflict": "catch_up"}, target={},
    ))  # fmt: skip
    life.give("run", late)
    life.give("accept", late, "--by", "lead")
    target = Project.open(life.folder).wiring.catalog.load_table(PRODUCT)
    live_row = target.scan(row_filter="day = '2024-01-02'", limit=1).to_arrow()
    target.append(live_row.set_column(1, live_row.schema.field(1), [[value_of("p", 99_999, 1)]]))
    life.give("publish", late, "--by", "lead")


class CutOff:
    """Interrupts the process the n-th time that it reaches a point."""

    def __init__(self, point: str, number: int) -> None:
        self.point, self.left = point, number

    def __call__(self, point: str) -> None:
        self.left -= point == self.point
        if point == self.point and self.left == 0:
            raise KeyboardInterrupt


def reject(life: Life) -> None:
    """Stage a job that rejects rows: too many first, then as many as the manifest lets pass."""
    halted = life.plan(life.manifest("strict", "too many", file="jobs/strict.sql"))
    life.give("stage", halted, code=3)
    life.give("cancel", halted, "--by", "lead")
    run = life.plan(life.manifest(
        "strict", "some rows are wrong", file="jobs/strict.sql",
        safety={"max_rejected_share": 0.5},
    ))  # fmt: skip
    life.give("run", run)
    for words in (("status", run), ("log", run), ("chunks", run), ("show", run), ("waive", run)):
        life.give(*words, *(["--list"] if words[0] == "waive" else []))
    rejected = Project.open(life.folder).wiring.catalog.load_table(
        "lakehouse_backfill.reject_record"
    )
    assert len(rejected.scan().to_arrow()) > 10
    life.publish(run)


def look(life: Life) -> None:
    """Try a partition; ask what is stale, why, and from what; look at pages of runs."""
    life.pour(6)
    newest = life.give("list")["data"]["runs"][0]["run_id"]
    tried = life.manifest("people", "a trial", validation={
        "suites": [{"file": "expectations/people.json"}], "golden": "expectations/golden.csv",
    })  # fmt: skip
    for words in (
        ("try", tried, "--by", "ann"), ("try", tried, "--partition", "2024-01-03", "--by", "ann"),
        ("stale",), ("stale", PRODUCT), ("stale", PRODUCT, "--draft", "--by", "ann"),
        ("lineage", PRODUCT), ("lineage", PRODUCT, "--partition", "2024-01-02"),
        ("lineage", SOURCE), ("why", PRODUCT), ("why", PRODUCT, "--partition", "2024-01-02"),
        ("list",), ("versions", PRODUCT), ("reproduce", newest, "--by", "ann"),
        ("audit", "guarantees", PRODUCT, "--by", "ann"), ("doctor",), ("maintain", "--by", "lead"),
    ):  # fmt: skip
        found = life.give(*words, code=None, as_json=False)
        assert found["exit_code"] in ((0, 3) if words[0] in ("try", "doctor") else (0,)), found
    life.give("evidence", newest, "--export", str(life.folder / "exported"))
    # What was to be searched is there.
    assert (life.folder / "exported" / "index.html").exists()
    assert list((life.folder / "jobs" / "people").glob("repair-*.yaml")), "the draft"


def keep_warm(life: Life) -> None:
    """Give commands that share a warm Spark, each in a process of its own; look at its folder."""
    life.profile(compiles=False)
    assert "ready" in life.type("session", "start", "--idle", "5")
    run = life.plan(life.manifest("people", "warm"))
    said = life.type("run", run, "--by", "ann")
    assert "using the warm session" in said, said
    assert "starting Spark" not in said, said
    life.type("--json", "diff", run, "--samples", "50", "--engine", "spark")
    life.type("diff", run, "--attribute", "--by", "ann")
    look_at_processes()
    held = [path for path in life.folder.rglob("*") if path.is_file() and "session" in str(path)]
    assert held
    assert [path for path in held if MARK.encode() in path.read_bytes()] == []
    life.type("session", "status")
    life.give("cancel", run, "--by", "lead")
    life.type("session", "stop")


#: What a job does that ends in an error whose text quotes a value, and what is shown instead.
_FIRST = 'src.agg(F.max("email")).collect()[0][0]'
FAILING = {
    "cast": ('src.withColumn("email", src.email.cast("int").cast("string"))', "CAST_INVALID_INPUT"),
    "raises": (f"fail({_FIRST})", "ValueError"),
    "raises_in_udf": ('src.withColumn("email", F.udf(fail)("email"))', "PythonException"),
    "tries": (f"reach({_FIRST})", "os.mkdir"),
    "tries_in_udf": ('src.withColumn("email", F.udf(reach)("email"))', "os.mkdir"),
    "writes": (f"getattr(src, 'wri' + 'te').parquet('/nowhere/' + {_FIRST})", "DataFrame.write"),
    "sends_sql": (f"src.sparkSession.sql('DROP TABLE ' + {_FIRST})", "SparkSession.sql"),
}  # fmt: skip
FAILING_JOB = """
from pathlib import Path
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

def fail(value):
    raise ValueError(value)

def reach(value):
    getattr(Path("/nowhere-" + value), "mk" + "dir")()
    return value

@transform(name="NAME", version="1.0.0", inputs=("src",))
def job(context, src):
    return BODY.select("day", "person", "email", "city", "note", "home", "amount")
"""


def fail(life: Life) -> None:
    """Stage jobs whose errors, and attempts to reach outside, quote a value."""
    for name, (body, shown) in FAILING.items():
        life.write(f"jobs/{name}.py", FAILING_JOB.replace("NAME", name).replace("BODY", body))
        run = life.plan(life.manifest(name, "fails"))
        failed = life.give("stage", run, code=None)
        assert not failed["ok"], failed
        assert shown in json.dumps(failed), failed
        for words in (("status", run), ("evidence", run), ("log", run)):
            life.give(*words, code=None)
        life.give("--debug", "stage", run, code=None)
        life.give("cancel", run, "--by", "lead", code=None)


def look_at_processes() -> None:
    for path in [
        *Path("/proc").glob("[0-9]*/cmdline"), *Path("/tmp").glob("hsperf*/*"),
    ]:  # fmt: skip
        with contextlib.suppress(OSError):
            assert MARK.encode() not in path.read_bytes(), path


if __name__ == "__main__":
    build_once()
    make_quick()
    os.environ[KEY_VARIABLE] = f"{MARK}-secret-of-the-masks"
    whole = Life(Path(sys.argv[1]))
    whole.show_both_ways()
    for act in sys.argv[2:]:
        vars()[act](whole)
    look_at_processes()
