"""Errors of payloads: what must be installed."""

from __future__ import annotations

from lakehouse_backfill.errors import ConfigError


def missing_package(kind: str, package: str) -> ConfigError:
    """Build the error for payloads of a kind whose package is not installed."""
    return ConfigError(
        f"payloads in {kind} need the package {package}, which is not installed",
        fix="pip install 'lakehouse-backfill[kafka]'",
    )
