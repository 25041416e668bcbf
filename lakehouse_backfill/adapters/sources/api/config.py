"""One API as it is called: address, headers with the secret, and limits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lakehouse_backfill.domain.sources.declaration import ApiSource
from lakehouse_backfill.errors import ConfigError


@dataclass(frozen=True)
class ApiEndpoint:
    """What a client needs for a request; the headers are never shown."""

    url: str
    headers: dict[str, str] = field(repr=False)
    declared: ApiSource

    @staticmethod
    def open(declared: ApiSource) -> ApiEndpoint:
        """Read the secret; raises ConfigError when its variable is not set, or the URL is none."""
        parts = urlsplit(declared.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "api.url is no web address",
                fix="write https://…",
                field="api.url",
            )
        if parts.username or parts.password:
            raise ConfigError(
                "api.url holds a user or a password",
                fix="remove it, and name an environment variable in `api.credentials`",
                field="api.url",
            )
        headers = {"Accept": "application/json", **declared.headers}
        secret = declared.credentials
        if secret is not None:
            found = os.environ.get(secret.env, "").strip()
            if not found:
                raise ConfigError(
                    f"the environment variable {secret.env} of api.credentials is not set",
                    fix=f"set {secret.env} to the secret",
                    field="api.credentials.env",
                )
            headers[secret.header] = f"{secret.prefix}{found}"
        for name, value in headers.items():
            if not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
                raise ConfigError(
                    f"the header {name!a} holds a character that no header can carry",
                    fix="use printable ASCII; a secret is one line",
                    field="api.headers",
                )
        return ApiEndpoint(declared.url, headers, declared)
