"""The pictures of the evidence page, as the documentation shows them.

    .venv/bin/python -m tests.pages.pictures docs/images

takes them anew: after a change of the page.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lakehouse_backfill.report.page import write_evidence_files
from tests.pages.browser import Browser
from tests.support.examples.dossiers import published_document

#: CSS pixels of an A4 page inside the margins of the style sheet: 182 mm by 269 mm; the margin.
A4_WIDTH, A4_HEIGHT, A4_MARGIN = 688, 1017, 53


@dataclass(frozen=True)
class Shot:
    """One picture: the size of the window, and how much of the page it shows."""

    name: str
    width: int
    height: int
    shown: int
    dark: bool = False
    printing: bool = False


SHOTS = (
    Shot("evidence-375", 375, 812, shown=2 * 812),
    Shot("evidence-1280", 1280, 800, shown=1700),
    Shot("evidence-dark", 1280, 800, shown=800, dark=True),
    Shot(
        "evidence-print", A4_WIDTH + 2 * A4_MARGIN, A4_HEIGHT + 2 * A4_MARGIN,
        shown=A4_HEIGHT + 2 * A4_MARGIN, printing=True,
    ),
)  # fmt: skip


def take(browser: Browser, page: Path, shot: Shot, folder: Path) -> Path:
    """Write one picture; give its path."""
    tab = browser.open(page, shot.width, shot.height, dark=shot.dark, printing=shot.printing)
    if shot.printing:
        tab.evaluate(f"document.body.style.padding = '{A4_MARGIN}px'")
    path = folder / f"{shot.name}.png"
    path.write_bytes(tab.picture(shot.width, shot.shown))
    return path


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, Browser(Path(scratch) / "browser") as browser:
        page = write_evidence_files(published_document(), Path(scratch))
        for shot in SHOTS:
            take(browser, page, shot, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
