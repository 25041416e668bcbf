"""Stand-ins of `ports/system.py`: a process without a key, and an anchor in memory."""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

from lakehouse_backfill.domain.identity.statement import AnchorRecord, Envelope
from lakehouse_backfill.errors import EnvironmentDown


class NoKey:
    """`ports.identity.Identity` of a process that was given nothing to sign with."""

    def has_signer(self) -> bool:
        return False

    def describe(self, *, is_required: bool) -> str:
        return "required" if is_required else "optional"

    def sign(self, message: bytes, by: str, at: datetime) -> NoReturn:
        raise AssertionError(f"{by} has no key")

    def check(self, envelope: Envelope, by: str, at: datetime) -> NoReturn:
        raise AssertionError("no signature is expected here")


class FakeAnchor:
    """`ports.identity.Anchor` in memory; `is_down` makes it fail."""

    place = "memory"

    def __init__(self) -> None:
        self.kept: dict[str, AnchorRecord] = {}
        self.is_down = False

    def keep(self, record: AnchorRecord) -> None:
        self._require_up()
        self.kept.setdefault(record.name, record)

    def names(self) -> frozenset[str]:
        self._require_up()
        return frozenset(self.kept)

    def records(self) -> tuple[AnchorRecord, ...]:
        self._require_up()
        return tuple(self.kept.values())

    def _require_up(self) -> None:
        if self.is_down:
            raise EnvironmentDown("the anchor does not answer")
