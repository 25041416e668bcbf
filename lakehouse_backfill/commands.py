"""Commands as people type them: each word is quoted, so that the line can be copied."""

from __future__ import annotations

import shlex

PROGRAM = "lakehouse-backfill"
#: Stands for the run manifest's file where nobody knows it.
MANIFEST_PLACEHOLDER = "MANIFEST"


def command_line(*words: str) -> str:
    """Give the line that a shell reads as the program and exactly these words."""
    return " ".join([PROGRAM, *(shlex.quote(word) for word in words)])


def plan_command(manifest_file: str = MANIFEST_PLACEHOLDER, revise: str = "") -> str:
    """Give the command that plans a run manifest, in the place of the run `revise`."""
    # Else a file whose name begins with a dash would be read as an option.
    file = f"./{manifest_file}" if manifest_file.startswith("-") else manifest_file
    return command_line("plan", file, *(("--revise", revise) if revise else ()))
