"""Who acts: as they say, or as the machine knows them."""

from __future__ import annotations

import getpass

from lakehouse_backfill.core.runs.said import name_fault, reason_fault
from lakehouse_backfill.errors import ConfigError

_NOTHING_CHANGED = "nothing was changed"


def resolve_actor(by: str | None) -> str:
    """Name the acting person, without blanks around: as given, or as logged in.

    Raises ConfigError for a name that is blank or holds control characters, and where the machine
    knows no user, as in some containers.
    """
    if by is not None:
        fault = name_fault(by)
        if fault:
            raise ConfigError(
                f"the name of who acts {fault}", state=_NOTHING_CHANGED, fix="write --by WHO"
            )
        return by.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:
        raise ConfigError(
            "this machine does not say who you are", state=_NOTHING_CHANGED, fix="add --by WHO"
        ) from error


def require_valid_reason(reason: str) -> str:
    """Give a reason back; raises ConfigError when it is too long or holds control characters."""
    fault = reason_fault(reason)
    if fault:
        raise ConfigError(
            f"the reason {fault}",
            state=_NOTHING_CHANGED,
            fix="say it in a sentence, and where the rest is written: --reason TEXT",
        )
    return reason
