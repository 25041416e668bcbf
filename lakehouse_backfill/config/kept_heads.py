"""Heads of the logs of runs that were kept outside the lake, read from JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lakehouse_backfill.errors import ConfigError, NotFound

_HEAD = re.compile(r"|[0-9a-f]{64}")
_FIX = "give a file that this command wrote: lakehouse-backfill audit verify --json > FILE"


def read_kept_heads(file: Path) -> dict[str, str]:
    """Return the newest hash of each run, as `audit verify --json` printed it then.

    Raises NotFound for a file that cannot be opened; ConfigError when it holds no heads: an empty
    file, or one of another command, must not pass for a comparison.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}", fix=_FIX) from error
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON: {error}", fix=_FIX) from error
    found = document.get("data", document) if isinstance(document, dict) else None
    heads = found.get("heads") if isinstance(found, dict) else None
    if not isinstance(heads, dict) or not heads:
        raise ConfigError(f"{file} holds no heads of runs", fix=_FIX)
    bad = [run for run, head in heads.items() if not _HEAD.fullmatch(str(head))]
    if bad:
        raise ConfigError(f"{file}: the head of {bad[0]} is no SHA-256", fix=_FIX)
    return {str(run): str(head) for run, head in heads.items()}
