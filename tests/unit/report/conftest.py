"""An evidence document as a published run leaves it behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.examples.dossiers import published_document


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of a published run, as `stages.look.evidence` gives it."""
    return published_document()
