"""The forms of the command line as data, read off the argument parsers themselves: for completions and the manual."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["", "choices", "folder", "model", "session", "file"]
_KINDS: Mapping[str, Kind] = {"DIR": "folder", "PATH|ID|URL": "model", "MODEL": "model", "ID": "session"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or a positional (without `names`). `value` is how a usage line calls its value, "" for none."""

    names: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def kind(self) -> Kind:
        """What may stand as its value."""
        return "choices" if self.choices else _KINDS.get(self.value, "")


@dataclass(frozen=True, slots=True)
class Form:
    """A command (`name` "": the program without one)."""

    name: str
    summary: str
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]


def form_of(name: str, parser: argparse.ArgumentParser, more_choices: Mapping[str, Sequence[str]]) -> Form:
    """A parser's form; `more_choices` are words for values that are not choices of the parser, by metavar."""
    actions: list[argparse.Action] = vars(parser)["_actions"]
    arguments = [_argument(action, more_choices) for action in actions if action.help != argparse.SUPPRESS]
    options = tuple(a for a in arguments if a.names)
    return Form(name, parser.description or "", options, tuple(a for a in arguments if not a.names))


def _argument(action: argparse.Action, more_choices: Mapping[str, Sequence[str]]) -> Argument:
    takes_value = action.nargs != 0
    metavar: Any = action.metavar
    value = str(metavar or action.dest.upper()) if takes_value else ""
    choices = tuple(map(str, action.choices or more_choices.get(value, ()))) if takes_value else ()
    names = tuple(action.option_strings)
    if choices and not metavar:
        value = "|".join(choices)
    return Argument(names, value, action.help or "", choices, action.nargs in ("*", "+"))
