"""What our errors take over of the engine's texts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg.commit import token_commit
from lakehouse_backfill.adapters.spark.commits import java_api
from lakehouse_backfill.adapters.spark.session import spark_errors, write_guard
from lakehouse_backfill.errors import ChecksFailed

VALUE = "ana@secret.example"


@pytest.mark.req("E7")
def test_an_error_quotes_no_value_where_values_are_hidden() -> None:
    error = ValueError(f"invalid literal: '{VALUE}'\nmore")
    assert spark_errors.first_line(error) == f"ValueError: invalid literal: '{VALUE}'"
    assert errors.text_of(error) == str(error)

    errors.hide_texts()

    shown = (spark_errors.first_line(error), errors.text_of(error))
    assert not any("ana" in text for text in shown)
    assert all(text.startswith("ValueError; its text may quote a restricted") for text in shown)


@pytest.mark.req("E7")
def test_a_translated_error_has_no_cause_whose_text_a_traceback_would_show() -> None:
    def translated() -> errors.BackfillError:
        with pytest.raises(errors.BackfillError) as raised, spark_errors.spark_errors("reading"):
            raise ValueError(VALUE)
        return raised.value

    assert isinstance(translated().__cause__, ValueError)
    errors.hide_texts()
    found = translated()
    assert found.__cause__ is None
    assert found.__suppress_context__


@pytest.mark.req("E7")
def test_a_refused_statement_of_a_job_is_not_quoted_where_values_are_hidden() -> None:
    def refused() -> str:
        with pytest.raises(errors.WriteForbidden) as raised:
            write_guard._check_sql(None, f"DROP TABLE {VALUE.partition('@')[0]}")
        return str(raised.value)

    assert "DROP TABLE ana" in refused()
    errors.hide_texts()
    assert "ana" not in refused().replace("DataFrame and", "")


class PythonException(Exception):
    """As PySpark names what a function of a job raised."""


TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/tmp/scratch/jobs/fares.py", line 9, in convert
    return rate(value)
           ^^^^^^^^^^^
  File "/tmp/scratch/jobs/rates.py", line 4, in rate
  File "/venv/lib/python3.11/site-packages/pandas/core/series.py", line 88, in apply
KeyError: 'ana@secret.example'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_an_exception_in_a_function_of_a_job_shows_its_last_line_with_file_and_line() -> None:
    spark_errors.name_job_folder(Path("/tmp/scratch"))
    error = spark_errors.translate_spark_error(PythonException(TRACE), "writing a chunk")
    assert isinstance(error, ChecksFailed)
    assert error.problem == (
        "writing a chunk: the transform failed on the data: KeyError: 'ana@secret.example', "
        "at jobs/rates.py:4"
    )


@pytest.mark.req("E7")
def test_where_values_are_hidden_an_exception_shows_its_place_alone() -> None:
    errors.hide_texts()
    error = spark_errors.translate_spark_error(PythonException(TRACE), "writing a chunk")
    assert "ana" not in error.problem
    assert error.problem.endswith("at jobs/rates.py:4")


def test_a_trace_of_java_shows_its_innermost_cause_as_before() -> None:
    text = "Job aborted.\n\tat x.Y\nCaused by: java.io.IOException: disk\n\tat x.Z\n"
    assert spark_errors.root_cause_line(text) == "java.io.IOException: disk"


def test_the_cause_of_a_failed_call_is_javas_error_not_the_name_of_the_call() -> None:
    text = "An error occurred while calling o7.overwrite.\n: a.ForbiddenException: no\n\tat x.Y\n"
    assert spark_errors.root_cause_line(text) == "a.ForbiddenException: no"


_ICEBERG = "org.apache.iceberg.exceptions."


@pytest.mark.req("X1", "T4")
@pytest.mark.parametrize(
    ("name", "message", "kind", "code"),
    [
        ("NotAuthorizedException", "Not authorized: expired", errors.CatalogDown, 6),
        ("ForbiddenException", "Forbidden: Cannot commit", errors.Unsupported, 2),
        ("BadRequestException", "Malformed request: no UUID", errors.Unsupported, 2),
        ("BadRequestException", "Cannot add: sequence number 3", errors.Conflict, 4),
    ],
)
def test_an_answer_of_the_catalog_ends_a_commit_of_spark_as_one_of_python(
    name: str, message: str, kind: type[errors.BackfillError], code: int
) -> None:
    """As docs/catalogs.md says, by Spark's own text, by that of Connect, and by Java's class."""
    thrown = f"An error occurred while calling o7.append.\n: {_ICEBERG}{name}: {message}\n\tat x\n"
    connect = f"({_ICEBERG}{name}) {message}"
    found = [spark_errors.translate_spark_error(ValueError(one), "w") for one in (thrown, connect)]
    java = SimpleNamespace(getName=lambda: _ICEBERG + name)
    exception = SimpleNamespace(getClass=lambda: java, getMessage=lambda: message)
    found.append(java_api._translate(SimpleNamespace(java_exception=exception), "w"))
    assert all(isinstance(one, kind) for one in found), found
    assert {one.exit_code for one in found} == {code}
    assert all(message in one.problem for one in found)


@pytest.mark.req("X1", "T4")
@pytest.mark.parametrize("refusal", [errors.Unsupported, errors.CatalogDown])
def test_a_swap_by_java_that_is_refused_is_of_unknown_outcome(
    refusal: type[errors.BackfillError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java may have sent it before, to a server that answered 503 and took it nevertheless."""
    loaded = SimpleNamespace(metadata=SimpleNamespace(table_uuid="u", current_snapshot_id=1))
    monkeypatch.setattr(token_commit.catalogs, "load_table", lambda *_: loaded)
    monkeypatch.setattr(token_commit.metadata, "find_publication_snapshot", lambda *_: None)

    def refused() -> None:
        raise refusal("ForbiddenException: no")

    words = dict.fromkeys(("action", "state", "busy_fix", "unknown_state"), "")
    commit = token_commit.TokenCommit(cast("Any", None), "t", "token", **words)
    with pytest.raises(errors.OutcomeUnknown, match="ForbiddenException: no"):
        commit.run(lambda *_: refused, 1.0)


def test_metadata_that_a_wrong_clock_made_is_not_blamed_on_the_job() -> None:
    text = "Invalid update timestamp 1: before last snapshot log entry at 86400000"
    found = spark_errors.translate_spark_error(ValueError(text), "writing")
    assert isinstance(found, errors.EnvironmentDown)
    assert found.fix.startswith("a clock is wrong")


SETTINGS = {
    "spark.sql.catalog.lake.credential": "robot:hunter2-of-unit/b71e",
    "spark.sql.catalog.lake.header.Authorization": "Basic cm9ib3Q6aHVudGVyMg",
    "spark.sql.catalog.lake.jdbc.user": "postgres",
    "spark.sql.catalog.lake.jdbc.password": "1234567",
}


@pytest.mark.req("X1")
@pytest.mark.parametrize(
    ("quoted", "shown"),
    [
        ("id=robot secret=hunter2-of-unit/b71e.", "id=robot secret=***."),
        ("robot:hunter2-of-unit/b71e", "***"),
        ("s=hunter2-of-unit%2Fb71e&t=1", "s=***&t=1"),
        ("[cm9ib3Q6aHVudGVyMg]", "[***]"),
        ("Authorization: bearer issued-0123456", "Authorization: bearer ***"),
        ('{"access_token": "issued-0123456", "a": 1}', '{"access_token": "***", "a": 1}'),
        ("client_secret=any-other-one&scope=x", "client_secret=***&scope=x"),
        ("postgresql://postgres 1234567 bearer of", "postgresql://postgres 1234567 bearer of"),
        (f"{'x' * 385}hunter2-of-unit/b71e", f"{'x' * 385}***"),
    ],
)
def test_an_error_shows_no_secret_that_a_server_quotes(quoted: str, shown: str) -> None:
    spark_errors.mask_settings(SETTINGS)
    error = spark_errors.translate_spark_error(ValueError(f"refused: {quoted}"), "writing")
    assert error.problem == str(error.args[0]) == f"writing: refused: {shown}"
    assert spark_errors.first_line(ValueError(quoted)) == f"ValueError: {shown}"
    assert errors.text_of(ValueError(quoted)) == shown


@pytest.mark.req("X1")
def test_sparks_log_recognises_secrets_as_errors_do() -> None:
    file = Path(spark_errors.__file__).with_name("log4j2.properties")
    (line,) = (one for one in file.read_text("utf-8").splitlines() if ".replace.regex" in one)
    in_java = line.partition(" = ")[2].replace("\\\\", "\\")
    assert in_java == errors._QUOTED_SECRET.pattern
