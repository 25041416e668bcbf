"""What somebody typed, split into options of the program and the command with its own."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

PROGRAM_FLAGS = ("--json", "--quiet", "--debug")
PROGRAM_OPTIONS = ("--project", "--profile")


@dataclass(frozen=True)
class SplitArguments:
    """`program`: options of the program; `rest`: the command and everything of its own."""

    program: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def wants_json(self) -> bool:
        """Whether the answer is to be one JSON object."""
        return "--json" in self.program

    @property
    def wants_traceback(self) -> bool:
        """Whether errors of ours are to be shown with their traceback."""
        return "--debug" in self.program

    def command(self, groups: Container[str]) -> str:
        """Name the command as it was typed: `plan`, `product add`, or empty."""
        names = [word for word in self.rest if not word.startswith("-")]
        count = 2 if names and names[0] in groups else 1
        return " ".join(names[:count])


def split_arguments(args: Sequence[str]) -> SplitArguments:
    """Let the program's options stand anywhere, also after the command; `--` ends them."""
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
