"""Keys are derived from the secret; redaction keeps equal values equal and shows none."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from lakehouse_backfill.domain.guards.privacy import (
    Redaction,
    derived_key,
    key_id,
)

SECRET = b"a secret that is long enough"


@pytest.mark.req("E3")
def test_each_use_of_the_secret_has_a_key_of_its_own() -> None:
    key = hmac.new(SECRET, b"lakehouse-backfill masks", hashlib.sha256).digest()
    assert derived_key(SECRET, "masks") == key
    assert derived_key(SECRET, "reports") != key


@pytest.mark.req("E7")
def test_without_a_secret_values_are_left_out() -> None:
    redaction = Redaction.of(["Mail", "home"])
    row = {"mail": "a@b", "home.street": "x", "home": {"street": "x"}, "amount": 3, "note": None}
    assert redaction.row(row) == {
        "mail": "restricted", "home.street": "restricted", "home": "restricted", "amount": 3,
        "note": None,
    }  # fmt: skip


@pytest.mark.req("E7")
def test_with_a_secret_equal_values_stay_equal_within_a_column() -> None:
    redaction = Redaction.of(["mail", "other"], SECRET)
    one, same = (redaction.value("mail", "a@b") for _ in range(2))
    assert one == same
    assert one not in (redaction.value("mail", "b@a"), redaction.value("other", "a@b"))
    assert "a@b" not in one
    assert redaction.value("mail", None) is None


@pytest.mark.req("E7")
def test_neither_the_secret_nor_its_keys_are_in_the_text_of_a_redaction() -> None:
    redaction = Redaction.of(["mail"], SECRET)
    assert "secret" not in repr(redaction).replace("restricted", "")
    assert repr(derived_key(SECRET, "reports")) not in repr(redaction)
    assert key_id(SECRET) not in SECRET.decode()
