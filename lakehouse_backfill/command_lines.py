"""The command lines that the program prints: a shell reads each as it was meant.

Texts that are stored, in logs and evidence, hold the verb and its arguments only, so that they and
their digests are the same for everybody. `Invocation` adds where they are shown what the reader's
call was given: the folder of the project, the profile, and the run that it was about.

Also splits the line that was typed into options of the program and the command with its own.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import PurePath

PROGRAM = "lakehouse-backfill"
PROJECT_VARIABLE = "LAKEHOUSE_BACKFILL_PROJECT"
PROFILE_VARIABLE = "LAKEHOUSE_BACKFILL_PROFILE"
#: Variables that differ between commands of one shell, and change nothing that a warm session
#: keeps. The profile is compared by its settings.
VOLATILE_VARIABLES = frozenset(
    ("_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES", "GX_ANALYTICS_ENABLED",
     "ARROW_DEFAULT_MEMORY_POOL", "MIMALLOC_ALLOW_THP", PROJECT_VARIABLE, PROFILE_VARIABLE)
)  # fmt: skip
#: Where the run is unknown; `Invocation.complete` replaces it, so nobody reads it.
RUN_PLACEHOLDER = "RUN"
#: What help and printed commands say where only the reader knows; pasted as it is, it is refused.
PERSON_PLACEHOLDER = "WHO"
REASON_PLACEHOLDER = "TEXT"
#: The verbs that open a project; the others need neither a project nor a profile.
PROJECT_VERBS = (
    "accept", "approve", "audit", "cancel", "chunks", "diff", "doctor", "dual-read", "evidence",
    "land", "lineage", "list", "log", "maintain", "new", "note", "pause", "plan", "product",
    "publish", "rebuild", "reconcile", "recover", "rehearse", "reject", "replay", "reproduce",
    "rollback", "run", "session", "shadow", "show", "stage", "stale", "status", "try", "unpause",
    "validate", "verify", "versions", "waive", "why",
)  # fmt: skip
_VERB = re.compile(rf"\b{PROGRAM} (?=(?:{'|'.join(PROJECT_VERBS)})\b)")
_UNKNOWN_RUN = re.compile(rf"\b({PROGRAM} plan --revise ){RUN_PLACEHOLDER}\b")


def command_line(*words: str) -> str:
    """Return the line that a shell reads as the program and exactly these words."""
    return " ".join([PROGRAM, *(shlex.quote(word) for word in words)])


def plan_command(manifest_file: str = "", revise: str = "", *options: str) -> str:
    """Return the command that plans a run manifest, revising the run `revise` if given.

    `options` stand last. Without a file, it plans the file that the revised run was planned from.
    """
    # A file name that begins with a dash would be parsed as an option.
    file = f"./{manifest_file}" if manifest_file.startswith("-") else manifest_file
    return command_line(
        "plan", *((file,) if file else ()), *(("--revise", revise) if revise else ()), *options
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


PROGRAM_FLAGS = ("--json", "--quiet", "--debug")
PROGRAM_OPTIONS = ("--project", "--profile")


@dataclass(frozen=True)
class SplitArguments:
    """`program`: options of the program; `rest`: the command and everything of its own."""

    program_options: tuple[str, ...]
    command_arguments: tuple[str, ...]

    @property
    def wants_json(self) -> bool:
        """Whether the answer is to be one JSON object."""
        return "--json" in self.program_options

    @property
    def wants_traceback(self) -> bool:
        """Whether errors of ours are to be shown with their traceback."""
        return "--debug" in self.program_options

    @property
    def invocation(self) -> Invocation:
        """What printed commands need to reach the same lake; options win over the environment."""
        return Invocation.of(self.project, self.option("--profile", PROFILE_VARIABLE))

    @property
    def project(self) -> str:
        """The folder of the project; empty for the one where the reader is."""
        return self.option("--project", PROJECT_VARIABLE)

    def option(self, option: str, variable: str) -> str:
        """Return the value of an option of the program, or else of its variable."""
        given = os.environ.get(variable, "")
        for place, word in enumerate(self.program_options, start=1):
            name, _, value = word.partition("=")
            if name == option:
                given = value or "".join(self.program_options[place : place + 1])
        return given

    def command_name(self, groups: Container[str]) -> str:
        """Name the command as it was typed: `plan`, `product add`, or empty."""
        names = [word for word in self.command_arguments if not word.startswith("-")]
        count = 2 if names and names[0] in groups else 1
        return " ".join(names[:count])


def split_arguments(args: Sequence[str]) -> SplitArguments:
    """Accept the program's options anywhere, also after the command; `--` ends them."""
    program: list[str] = []
    rest: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        if word == "--":
            return SplitArguments(tuple(program), (*rest, word, *words))
        if word in PROGRAM_FLAGS or word.partition("=")[0] in PROGRAM_OPTIONS:
            program.append(word)
            if word in PROGRAM_OPTIONS and words:
                program.append(words.pop(0))
        else:
            rest.append(word)
    return SplitArguments(tuple(program), tuple(rest))
