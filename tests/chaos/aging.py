"""Tables that nobody has written to for a while."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def register_aged(catalog: Any, source: str, name: str, days: float) -> None:
    """Register the metadata of a table under a name, as if it was written so many days ago."""
    location = catalog.load_table(source).metadata_location
    path = Path(unquote(urlsplit(location).path))
    metadata = json.loads(path.read_text(encoding="utf-8"))
    metadata["last-updated-ms"] -= int(timedelta(days=days).total_seconds() * 1000)
    aged = path.with_name(f"00000-{name.rpartition('.')[2]}.metadata.json")
    aged.write_text(json.dumps(metadata), encoding="utf-8")
    if catalog.table_exists(name):
        catalog.drop_table(name)
    catalog.register_table(name, f"{location.rpartition('/')[0]}/{aged.name}")
