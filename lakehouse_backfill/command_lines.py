"""The command lines that the program prints: a shell reads each as it was meant.

Texts that are stored, in logs and evidence, hold the verb and its arguments only, so that they and
their digests are the same for everybody. `Invocation` adds where they are shown what the reader's
call was given: the folder of the project, the profile, and the run that it was about.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath

PROGRAM = "lakehouse-backfill"
PROJECT_VARIABLE = "LAKEHOUSE_BACKFILL_PROJECT"
PROFILE_VARIABLE = "LAKEHOUSE_BACKFILL_PROFILE"
#: Where the run is unknown; `Invocation.complete` replaces it, so nobody reads it.
RUN_PLACEHOLDER = "RUN"
#: What help and printed commands say where only the reader knows; pasted as it is, it is refused.
PERSON_PLACEHOLDER = "WHO"
REASON_PLACEHOLDER = "TEXT"
#: The verbs that open a project; the others need neither a project nor a profile.
PROJECT_VERBS = (
    "accept", "approve", "audit", "cancel", "chunks", "diff", "doctor", "dual-read", "evidence",
    "lineage", "list", "log", "maintain", "new", "plan", "product", "publish", "reconcile",
    "recover", "reject", "reproduce", "rollback", "run", "session", "shadow", "show", "stage",
    "stale", "status", "try", "validate", "verify", "versions", "waive", "why",
)  # fmt: skip
_VERB = re.compile(rf"\b{PROGRAM} (?=(?:{'|'.join(PROJECT_VERBS)})\b)")
_UNKNOWN_RUN = re.compile(rf"\b({PROGRAM} plan --revise ){RUN_PLACEHOLDER}\b")


def command_line(*words: str) -> str:
    """Return the line that a shell reads as the program and exactly these words."""
    return " ".join([PROGRAM, *(shlex.quote(word) for word in words)])


def plan_command(manifest_file: str = "", revise: str = "") -> str:
    """Return the command that plans a run manifest, revising the run `revise` if given.

    Without a file, it plans the file that the revised run was planned from.
    """
    # A file name that begins with a dash would be parsed as an option.
    file = f"./{manifest_file}" if manifest_file.startswith("-") else manifest_file
    return command_line(
        "plan", *((file,) if file else ()), *(("--revise", revise) if revise else ())
    )


def with_remark(command: str, remark: str) -> str:
    """Add a remark that a shell does not read."""
    return f"{command}   # {remark}"


@dataclass(frozen=True)
class Invocation:
    """How the program was called: `project` and `profile` as they were given, or empty."""

    project: str = ""
    profile: str = ""

    @staticmethod
    def of(project: PurePath | str, profile: str | None) -> Invocation:
        """Take what was given; the folder where the reader is needs no name."""
        is_here = PurePath(project) == PurePath()
        return Invocation("" if is_here else str(project), profile or "")

    @property
    def options(self) -> str:
        """The options that a command needs to reach the same lake, each followed by a space."""
        given = (("--project", self.project), ("--profile", self.profile))
        words = [word for pair in given if pair[1] for word in pair]
        return "".join(f"{shlex.quote(word)} " for word in words)

    def complete(self, text: str, run: str = "") -> str:
        """Return a text whose commands reach the same project, lake and run as this call.

        Completing a text twice changes nothing.
        """
        if PROGRAM not in text:
            return text
        if run:
            text = _UNKNOWN_RUN.sub(lambda found: found[1] + shlex.quote(run), text)
        else:
            text = _UNKNOWN_RUN.sub("give the same command again", text)
        return _VERB.sub(lambda found: found[0] + self.options, text)


DEFAULT_INVOCATION = Invocation()
