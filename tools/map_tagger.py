"""Tags of files for the repository's map, and the process that makes them for `map_pool.py`.

That process gets lines with the names of some files on stdin (JSON) and answers each with a line on stdout; its
argument is the repository. It ends when stdin does, which is also when the process that asked is gone.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import TypeAlias

from .languages import MAX_SOURCE_BYTES, language_of
from .regular import read_regular
from .tags import TAGGED, Tag, definitions, words

Record: TypeAlias = tuple[list[Tag], str]  # definitions, `words`


def main() -> None:
    """Answer lines until there are no more."""
    gc.disable()  # nothing here is a cycle; looking for some costs a fifth of the time
    for line in sys.stdin.buffer:
        answer = json.dumps(tag_files(sys.argv[1], json.loads(line)), separators=(",", ":"))
        sys.stdout.buffer.write(answer.encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


def tag_files(root: str | os.PathLike[str], names: Sequence[str]) -> list[Record]:
    """A record for each file of a repository; empty where it cannot be read, or is none that we know."""
    return [_tag_file(os.path.join(root, name)) for name in names]  # noqa: PTH118 - no Path: hot


def _tag_file(path: str) -> Record:
    language = language_of(PurePath(path))
    try:
        data = read_regular(path, MAX_SOURCE_BYTES)
    except OSError:
        return [], ""
    if language not in TAGGED or b"\0" in data[:4096]:
        return [], ""
    return definitions(data, language), words(data)
