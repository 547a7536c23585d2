"""Judges a scripted run of the real model: the file exists, was changed by tools, speed was measured."""

import json
import sys
from pathlib import Path


def main(result: Path, folder: Path) -> int:
    """Prints what the run did; returns 1 when it did not create and change a file through tools."""
    run = json.loads(result.read_text())
    worked = [call["name"] for call in run["tool_calls"] if not call["is_error"]]
    usage = run["usage"]
    print(
        f"{run['outcome']} in {run['turns']} turns; calls that worked: {', '.join(worked) or 'none'}; "
        f"first token {usage['time_to_first_token']} s, {usage['tokens_per_second']} tok/s"
    )
    files = sorted(path.name for path in folder.iterdir())
    print("files:", ", ".join(files) or "none")
    n_changes = sum(name in ("write", "edit", "patch") for name in worked)
    return 0 if run["outcome"] == "done" and files and n_changes >= 2 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
