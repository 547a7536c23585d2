"""Exit codes, and the error of a command line that cannot be used."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_USAGE = 2  # usage or configuration
EXIT_DENIED = 3  # a needed permission was denied
EXIT_LIMIT = 4  # turn or token limit
EXIT_TEMPORARY = 75  # a failure worth retrying
EXIT_CANCELLED = 130


class UsageError(Exception):
    """The command line, or what it names, cannot be used; the text is for people."""
