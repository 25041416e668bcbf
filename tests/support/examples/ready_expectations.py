"""The ready expectations as docs/expectations.md prints them, by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parents[3] / "docs" / "expectations.md"
_SECTION = re.compile(
    r"^## (\w+): ([^\n]+)\n\n[^\n]+\n\n```json\n(.+?)\n```$", re.MULTILINE | re.DOTALL
)


class ReadyExpectation(NamedTuple):
    """What a rule is about, and its entries of a suite file."""

    about: str
    entries: list[dict[str, Any]]


READY_EXPECTATIONS = {
    name: ReadyExpectation(about, json.loads(text))
    for name, about, text in _SECTION.findall(PAGE.read_text(encoding="utf-8"))
}
