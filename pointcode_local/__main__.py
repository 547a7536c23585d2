"""Entry point: takes the user's folder off sys.path, so that their `tools/` or `engine/` never shadows a module."""

import sys


def main() -> int:
    """Run the command line; returns the process's exit code."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    from pointcode_local.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
