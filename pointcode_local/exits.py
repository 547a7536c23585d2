"""Exit codes, the error of a command line that cannot be used, and how a command says why it failed."""

from __future__ import annotations

import sys

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_DENIED = 3
EXIT_LIMIT = 4
EXIT_TEMPORARY = 75
EXIT_CANCELLED = 130

EXIT_MEANINGS = {  # of a scripted run; the other commands use 0, 1, 2, 75 and 130 in the same sense
    EXIT_DONE: "done: the model came to an end by itself; whether it did right only a check of yours can tell",
    EXIT_ERROR: "the engine, the server or this program failed",
    EXIT_USAGE: "the command line, the settings or what they name cannot be used; nothing was begun",
    EXIT_DENIED: "a call was refused, by a rule or since nobody could be asked",
    EXIT_LIMIT: "a limit ended the turn (model calls, tokens), or the model gave up: "
    "no answer, only repetitions, or no more tries",
    EXIT_TEMPORARY: "a failure that is worth a retry: the server is away or busy",
    EXIT_CANCELLED: "stopped by a signal",
}


class UsageError(Exception):
    """The command line, or what it names, cannot be used; the text is for people."""


def complain(error: Exception | str, code: int) -> int:
    """Say on stderr why a command failed, as inert text; returns `code`, to end with."""
    from pointcode_local.render import plain

    print(f"pointcode: {plain(str(error))}", file=sys.stderr)
    return code
