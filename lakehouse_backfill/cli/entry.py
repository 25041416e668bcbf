"""The program, before anything is loaded: a command server runs the command, where there is one.

Loads the libraries only when the command runs in this process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from lakehouse_backfill.adapters.system.command_channel import (
    EndUnknown,
    NotServed,
    find_command_server,
    run_in_server,
)
from lakehouse_backfill.command_lines import SplitArguments, split_arguments


def run() -> None:
    """Run the program; the entry point of both console scripts."""
    if sys.stderr is None:
        # The process was started without it; errors then have their exit code alone.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (to the end)
    words = split_arguments(sys.argv[1:])
    code = _run_in_session(words)
    if code is not None:
        sys.exit(code)
    from lakehouse_backfill.cli.main import run as run_here

    try:
        run_here()
    except SystemExit as ended:
        end_process(ended)
        raise


def end_process(ended: SystemExit) -> None:
    """End the process as Python ends, but do not take apart what it has loaded.

    That is a fifth of a short command's processor time; in a process that a command server forked
    it would copy all the server's memory. Does nothing for an exit code that is a text.
    """
    if not isinstance(ended.code, int | None):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    code = ended.code or 0
    for stream in (sys.stdout, sys.stderr):
        # None: the process was started without it.
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            # What Python exits with when it cannot flush.
            code = 120
    os._exit(code & 0xFF)


def _run_in_session(words: SplitArguments) -> int | None:
    """Return the exit code of a command that a command server ran; None when none does."""
    address = find_command_server(words.project, words.command_arguments, os.environ)
    if address is None:
        return None
    try:
        return run_in_server(address).end_process()
    except NotServed as reason:
        if not {"--json", "--quiet"} & set(words.program_options):
            sys.stderr.write(f"the warm session does not run this command: {reason}\n")
        return None
    except EndUnknown:
        return _report_unknown_end(words)


def _report_unknown_end(words: SplitArguments) -> int:
    from lakehouse_backfill.cli.group import build_envelope, write_json
    from lakehouse_backfill.errors import OutcomeUnknown

    error = OutcomeUnknown(
        "the warm session was killed while the command worked, and does not tell how it ended",
        state="what was committed is kept; a publication landed whole or not at all",
        fix="lakehouse-backfill status, then give the same command again: it goes on from there",
    )
    error.complete_commands(words.invocation.complete)
    if words.wants_json:
        write_json(build_envelope(words.command_name(()), error=error), sys.stdout)
    else:
        sys.stderr.write(f"{error}\n")
    return error.exit_code
