"""One browser for all tests of this folder, and the example page.

Without a browser every test here fails, and says what to install: a page that nobody looked at is
not tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_backfill.report.page import write_evidence_files
from tests.pages.browser import Browser, BrowserMissing
from tests.support.examples.dossiers import published_document


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        with Browser(tmp_path_factory.mktemp("browser")) as found:
            yield found
    except BrowserMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the example run."""
    return write_evidence_files(published_document(), tmp_path_factory.mktemp("evidence"))
