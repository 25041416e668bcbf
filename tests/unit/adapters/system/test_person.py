"""Who acts is one name, however it was typed; what they say can be kept and shown."""

from __future__ import annotations

import getpass

import pytest

from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.errors import ConfigError


def test_blanks_around_a_name_make_nobody_else() -> None:
    assert resolve_actor(" ana\n") == "ana"


def test_who_says_no_name_acts_as_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    assert resolve_actor(None) == getpass.getuser() == "bob"


@pytest.mark.parametrize("name", ["", "  ", "a\x1b[2Jna", "a\nb", "\udcff"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of who acts"):
        resolve_actor(name)


def test_a_reason_may_have_lines_and_any_language() -> None:
    assert require_valid_reason("zu spät\n\t遅い") == "zu spät\n\t遅い"


@pytest.mark.parametrize("reason", ["a" * 2001, "a\x1b[2J", "a\x9b2J"])
def test_a_reason_that_nobody_could_read_safely_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match="the reason"):
        require_valid_reason(reason)
