"""Entry point: takes the user's folder off sys.path, so that their `tools/` or `engine/` never shadows a module."""

import gc
import io
import os
import sys


def _open_standard_files() -> None:
    """Who starts us with one of the three closed must not get a file of ours in its place, and what we say written
    into it: they lead nowhere then."""
    for number, way in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # takes the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal or a locale without UTF-8 shows "?" for what it lacks
        sys.stdout.reconfigure(errors="replace")


def main() -> int:
    """Run the command line; returns the process's exit code."""
    gc.set_threshold(20_000, 10, 10)  # imports make no cycles that could go: looking for some takes 0.05 s
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    _open_standard_files()
    from pointcode_local.cli import run

    try:
        return run(sys.argv[1:])
    finally:
        gc.freeze()  # what is left goes with the process: looking through it takes as long


if __name__ == "__main__":
    sys.exit(main())
