"""Who acts: signatures of statements, and the anchor that keeps heads of logs elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lakehouse_backfill.domain.identity.anchor import AnchorRecord
from lakehouse_backfill.domain.identity.statement import Envelope, Signature
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class CheckedSignature:
    """What a look at a signature found: the key, as people know it, and what is wrong with it."""

    key: str
    fault: str = ""


class Identity(Protocol):
    """The key of the acting person, and the keys of all who may sign, as the project lists them."""

    def has_signer(self) -> bool:
        """Return whether this process was given something to sign with."""
        ...

    def describe(self, *, is_required: bool) -> str:
        """Describe who may sign, and whether this process may; raises ConfigError if it cannot."""
        ...

    def sign(self, message: bytes, by: str, at: datetime) -> Signature:
        """Sign as `by`; raises NotAllowed unless what signs is listed for `by` at that time."""
        ...

    def check(self, envelope: Envelope, by: str, at: datetime) -> CheckedSignature:
        """Return whether the envelope is signed by a key that is listed for `by` at that time."""
        ...


class Anchor(Protocol):
    """A place outside the lake that keeps heads of logs; what is there is never changed."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    @side_effect
    def keep(self, record: AnchorRecord) -> None:
        """Write a record; one of the same name stays as it is. Raises EnvironmentDown."""
        ...

    def names(self) -> frozenset[str]:
        """Return the names of all records; raises EnvironmentDown."""
        ...

    def records(self) -> tuple[AnchorRecord, ...]:
        """Return all records; raises EnvironmentDown, and Tampered for one that is no record."""
        ...
