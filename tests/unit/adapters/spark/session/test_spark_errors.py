"""What our errors take over of the engine's texts."""

from __future__ import annotations

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.spark.session import spark_errors, write_guard

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
