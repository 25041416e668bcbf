"""A process that adopts on demand: reads a folder and a request a line, says what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.errors import BackfillError
from tests.support.lakes.tables import Kit


def main() -> None:
    kits: dict[str, Kit] = {}
    print("ready", flush=True)  # noqa: T201 (the protocol)
    for line in sys.stdin:
        root, _, request = line.partition("\t")
        kit = kits[root] = kits.get(root) or Kit(Path(root))
        try:
            kit.publisher.adopt(AdoptRequest.model_validate_json(request))
            outcome = "landed"
        except BackfillError as error:
            outcome = error.code
        print(outcome, flush=True)  # noqa: T201 (the protocol)


if __name__ == "__main__":
    main()
