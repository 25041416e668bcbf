"""Commands for runs whose shadow another engine writes."""

from __future__ import annotations

import typer

from lakehouse_backfill.cli.options import ByOption, RunArgument, TakeOverOption
from lakehouse_backfill.cli.session import acting_person, current_session


def shadow_open(
    context: typer.Context,
    run: RunArgument,
    by: ByOption = None,
    *,
    take_over: TakeOverOption = False,
) -> None:
    """Make the run's shadow table, for another engine to write.

    The manifest says transform.writer: external. The pinned input is judged first. Write only the
    printed partitions, with copy-on-write; then close the shadow.

    Examples:
      lakehouse-backfill shadow open bf-4f1c09a2d7
      lakehouse-backfill shadow open bf-4f1c09a2d7 --json
    """
    project = current_session(context).project(computes=True)
    current_session(context).show(context, project.shadow_open(run, acting_person(by), take_over))


def shadow_close(
    context: typer.Context,
    run: RunArgument,
    by: ByOption = None,
    *,
    take_over: TakeOverOption = False,
) -> None:
    """Fingerprint what another engine wrote into the shadow.

    Shuts that engine out, proves that only the run's partitions changed, counts, hashes and checks
    each chunk. Then go on as always: validate, accept, publish.

    Examples:
      lakehouse-backfill shadow close bf-4f1c09a2d7
    """
    project = current_session(context).project(computes=True)
    current_session(context).show(context, project.shadow_close(run, acting_person(by), take_over))
