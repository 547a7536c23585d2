"""Work that wants a command."""

from __future__ import annotations

import hashlib

from pointcode_local.turnbench.task import Solution, Task, executable, gone, same_bytes, says, text, untouched

_CODES = text(
    """
    def code(seed):
        for _ in range(5):
            seed = (seed * 1103515245 + 12345) % 2147483648
        return seed % 100000


    print("code", code(7))
    """
)
_LOG = b"".join(b"line %d\n" % n for n in range(137))
_TESTS = text(
    """
    import unittest


    class Test(unittest.TestCase):
        def test_one(self):
            self.assertEqual(1 + 1, 2)

        def test_two(self):
            self.assertEqual(2 * 2, 5)

        def test_three(self):
            self.assertEqual(3 - 1, 2)
    """
)
_BLOB = bytes(range(256)) * 3


def _code() -> str:
    seed = 7
    for _ in range(5):
        seed = (seed * 1103515245 + 12345) % 2147483648
    return str(seed % 100000)


TASKS = (
    Task(
        "run-script",
        "Run codes.py and tell me the number that it prints.",
        (says(rf"\b{_code()}\b"), untouched()),
        Solution(answer=f"It prints {_code()}."),
        {"codes.py": _CODES},
    ),
    Task(
        "count-lines",
        "How many lines does data.log have?",
        (says(r"\b137\b"), untouched()),
        Solution(answer="It has 137 lines."),
        {"data.log": _LOG},
    ),
    Task(
        "which-test-fails",
        "Run the tests with python3 -m unittest and tell me which test fails.",
        (says(r"test_two"), untouched()),
        Solution(answer="test_two fails: 2 * 2 is 4, not 5."),
        {"test_numbers.py": _TESTS},
    ),
    Task(
        "backup",
        "Make a folder backup and copy notes.txt into it.",
        (same_bytes("backup/notes.txt", b"remember the milk\n"), untouched()),
        Solution({"backup/notes.txt": b"remember the milk\n"}),
        {"notes.txt": b"remember the milk\n"},
    ),
    Task(
        "delete",
        "Delete the file old.log.",
        (gone("old.log"), untouched("old.log")),
        Solution({"old.log": None}),
        {"old.log": b"gone soon\n", "new.log": b"keep me\n"},
    ),
    Task(
        "executable",
        "Make run.sh executable.",
        (executable("run.sh"), untouched()),
        Solution(modes={"run.sh": 0o755}),
        {"run.sh": b"#!/bin/sh\necho running\n"},
    ),
    Task(
        "checksum",
        "What is the sha256 checksum of blob.bin?",
        (says(hashlib.sha256(_BLOB).hexdigest()), untouched()),
        Solution(answer=f"It is {hashlib.sha256(_BLOB).hexdigest()}."),
        {"blob.bin": _BLOB},
    ),
)
