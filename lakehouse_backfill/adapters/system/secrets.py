"""Secrets of masks, read from an environment variable or a file by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lakehouse_backfill.domain.guards.privacy import MIN_SECRET_BYTES, MaskKey
from lakehouse_backfill.errors import ConfigError


@dataclass(frozen=True)
class LocalSecrets:
    """Implements `ports.system.Secrets`; files are relative to the project's folder."""

    folder: Path

    def read(self, key: MaskKey) -> bytes:
        """Return the secret without white space at its ends; it is never part of an error."""
        if key.env:
            found = os.environ.get(key.env, "").encode()
        else:
            try:
                found = (self.folder / str(key.file)).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"the secret of the masks cannot be read from {key.place}: {error.strerror}",
                    fix=f"put it there; at least {MIN_SECRET_BYTES} random bytes",
                ) from error
        secret = found.strip()
        if len(secret) < MIN_SECRET_BYTES:
            length = f"has {len(secret)} bytes" if secret else "is missing"
            raise ConfigError(
                f"the secret of the masks, {key.place}, {length}",
                fix=f"set it to the secret of version {key.version}; a new one has at least "
                f"{MIN_SECRET_BYTES} random bytes",
            )
        return secret
