"""What our errors take over of the engine's texts."""

from __future__ import annotations

from threading import Event

import pytest

from lakehouse_backfill.adapters.spark.session import spark_errors


@pytest.mark.req("E7")
def test_an_error_quotes_no_value_where_values_are_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = ValueError("invalid literal: 'ana@secret.example'\nmore")
    assert spark_errors.first_line(error) == "ValueError: invalid literal: 'ana@secret.example'"

    monkeypatch.setattr(spark_errors, "_hides_values", Event())
    spark_errors.hide_texts()

    shown = spark_errors.first_line(error)
    assert "ana" not in shown
    assert shown.startswith("ValueError; its text may quote a restricted value")
