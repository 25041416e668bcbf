"""The port `Secrets`: the fake and the local adapter give a secret, or an error without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system.process import LocalSecrets
from lakehouse_backfill.domain.guards.privacy import MaskKey
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.ports.system import Secrets
from tests.support.fakes.context import FakeSecrets

pytestmark = pytest.mark.req("E3")
KEY = MaskKey(env="LHB_TEST_MASK_KEY", version="1")
Give = Callable[[bytes], Secrets]


@pytest.fixture(params=["fake", "environment", "file"])
def give(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Give, MaskKey]:
    """Give what makes the port with a secret in its place, and the reference to it."""
    key = MaskKey(file="keys/mask", version="1") if request.param == "file" else KEY

    def make(secret: bytes) -> Secrets:
        if request.param == "fake":
            return FakeSecrets(secret)
        monkeypatch.setenv("LHB_TEST_MASK_KEY", secret.decode())
        if secret:
            (tmp_path / "keys").mkdir()
            (tmp_path / "keys" / "mask").write_bytes(secret + b"\n")
        return LocalSecrets(tmp_path)

    return make, key


def test_a_secret_is_read_by_name(give: tuple[Give, MaskKey]) -> None:
    make, key = give
    assert make(b"sixteen bytes and more").read(key) == b"sixteen bytes and more"


def test_a_missing_secret_is_an_error_that_names_its_place(give: tuple[Give, MaskKey]) -> None:
    make, key = give
    with pytest.raises(ConfigError, match=key.place):
        make(b"").read(key)


def test_a_short_secret_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LHB_TEST_MASK_KEY", "hunter2")
    with pytest.raises(ConfigError, match="has 7 bytes") as raised:
        LocalSecrets(tmp_path).read(KEY)
    assert "hunter2" not in str(raised.value)
