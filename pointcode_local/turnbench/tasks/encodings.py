"""Small changes to files whose other bytes must stay: line endings, encodings, marks, tabs, a missing last newline."""

from __future__ import annotations

from pointcode_local.turnbench.task import Solution, Task, same_bytes

_INI = b"[server]\r\nhost = localhost\r\nport = 8080\r\ndebug = off\r\n"
_LETTER = "Herr Müller\nHauptstraße 5\n10115 Berlin\n".encode("latin-1")
_PRICES = "\ufeffitem,price\ncoffee,3\ntea,2\ncake,5\n".encode()
_VERSION = b"1.2.3"
_MAKEFILE = b"CC = gcc\n\nhello: hello.c\n\t$(CC) -o hello hello.c\n\nclean:\n\trm -f hello\n"
_MODULE = (
    b'"""About this program."""\r\n\r\n\r\ndef version():\r\n    return "1.0"\r\n\r\n\r\n'
    b'def name():\r\n    return "demo"\r\n'
)
_WORDS = b"alpha\r\nbeta\r\ngamma\r\n"


def _task(name: str, prompt: str, path: str, before: bytes, after: bytes) -> Task:
    return Task(name, prompt, (same_bytes(path, after),), Solution({path: after}), {path: before})


TASKS = (
    _task("crlf-ini", "In settings.ini change the port to 9090.", "settings.ini", _INI, _INI.replace(b"8080", b"9090")),
    _task(
        "latin-1-letter",
        "Herr Müller has moved: in letter.txt replace Berlin with Hamburg.",
        "letter.txt",
        _LETTER,
        _LETTER.replace(b"Berlin", b"Hamburg"),
    ),
    _task(
        "bom-csv",
        "Change the price of tea in prices.csv to 4.",
        "prices.csv",
        _PRICES,
        _PRICES.replace(b"tea,2", b"tea,4"),
    ),
    _task("no-last-newline", "Change the version in version.txt to 1.3.0.", "version.txt", _VERSION, b"1.3.0"),
    _task(
        "tabs-makefile",
        "Use clang instead of gcc in the Makefile.",
        "Makefile",
        _MAKEFILE,
        _MAKEFILE.replace(b"gcc", b"clang"),
    ),
    _task(
        "crlf-python",
        'In about.py the function version must return "2.0".',
        "about.py",
        _MODULE,
        _MODULE.replace(b"1.0", b"2.0"),
    ),
    _task("crlf-append", "Add the line delta at the end of words.txt.", "words.txt", _WORDS, _WORDS + b"delta\r\n"),
)
