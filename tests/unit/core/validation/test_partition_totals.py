"""Counted values become states by name; no two of them share one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.validation.partition_totals import state_text

pytestmark = pytest.mark.req("Q4")

TEXTS = st.none() | st.text("=nul", max_size=6) | st.sampled_from(["null", "=null", "==null"])


def test_the_text_null_is_not_the_missing_value() -> None:
    states = [state_text(value) for value in (None, "null", "=null", "open", "")]
    assert states == ["null", "=null", "==null", "open", ""]


@given(TEXTS, TEXTS)
def test_different_values_are_different_states(one: str | None, other: str | None) -> None:
    assert (state_text(one) == state_text(other)) is (one == other)
