"""Results of the fake project, drawn as the program draws them."""

from __future__ import annotations

import io
from typing import Any

from lakehouse_backfill.cli.render import render_result
from tests.support.fakes.project import make_result


class Screen(io.StringIO):
    """A terminal as rich sees it."""

    def isatty(self) -> bool:
        return True


def drawn(verb: str, data: dict[str, Any] | None = None, stream: io.StringIO | None = None) -> str:
    """Draw the result of a verb as the program shows it."""
    page = stream or io.StringIO()
    render_result(make_result(verb, data), page)
    return page.getvalue()
