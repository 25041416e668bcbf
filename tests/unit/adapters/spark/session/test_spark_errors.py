"""What our errors take over of the engine's texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill import errors
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


def test_metadata_that_a_wrong_clock_made_is_not_blamed_on_the_job() -> None:
    text = "Invalid update timestamp 1: before last snapshot log entry at 86400000"
    found = spark_errors.translate_spark_error(ValueError(text), "writing")
    assert isinstance(found, errors.EnvironmentDown)
    assert found.fix.startswith("a clock is wrong")
