"""Questions about the files: the answer must hold what only the files say, and nothing may change."""

from __future__ import annotations

from pointcode_local.turnbench.task import Solution, Task, says, says_not, text, untouched

_DATES = b'def parse_date(text):\n    year, month, day = text.split("-")\n    return int(year), int(month), int(day)\n'
_TEXTS = b"def shorten(text, limit):\n    return text[:limit]\n"
_MYSTERY = b"def f(text):\n    return text[::-1]\n"
_BANK = text(
    """
    class Account:
        def __init__(self, balance):
            self.balance = balance

        def deposit(self, amount):
            self.balance += amount

        def withdraw(self, amount):
            if amount > self.balance:
                raise ValueError("not enough money")
            self.balance -= amount

        def show(self):
            return f"{self.balance} EUR"
    """
)
_UTIL = text(
    """
    def load(path):
        with open(path) as file:
            return file.read()


    def save(path, text):
        with open(path, "w") as file:
            file.write(text)


    def clean(text):
        return text.strip().lower()
    """
)
_SERVER = text(
    """
    import http.server

    PORT = 8123

    http.server.HTTPServer(("", PORT), None).serve_forever()
    """
)
_CLIENT = text(
    """
    import urllib.request


    def fetch(url, timeout=17):
        with urllib.request.urlopen(url, timeout=timeout) as reply:
            return reply.read()
    """
)

TASKS = (
    Task(
        "where-defined",
        "In which file is the function parse_date defined?",
        (says(r"dates\.py"), says_not(r"texts\.py|main\.py"), untouched()),
        Solution(answer="It is defined in lib/dates.py."),
        {
            "lib/dates.py": _DATES,
            "lib/texts.py": _TEXTS,
            "main.py": b"from lib.texts import shorten\n\nprint(shorten('abc', 2))\n",
        },
    ),
    Task(
        "what-does-it-do",
        "What does the function f in mystery.py do?",
        (says(r"revers|backward"), untouched()),
        Solution(answer="It returns the text reversed."),
        {"mystery.py": _MYSTERY},
    ),
    Task(
        "which-port",
        "On which port does the server listen? Look at the files in this folder.",
        (says(r"\b8123\b"), untouched()),
        Solution(answer="The server listens on port 8123."),
        {
            "server.py": _SERVER,
            "README.md": b"# A server\n\nStart it with python server.py.\n",
        },
    ),
    Task(
        "how-many-functions",
        "How many functions are in util.py, and what are their names?",
        (says(r"\b(3|three)\b", r"\bload\b", r"\bsave\b", r"\bclean\b"), untouched()),
        Solution(answer="There are three: load, save and clean."),
        {"util.py": _UTIL},
    ),
    Task(
        "find-todos",
        "Find the files with TODO comments and tell me their names.",
        (says(r"parse\.py", r"report\.py"), says_not(r"\bmain\.py"), untouched()),
        Solution(answer="src/parse.py and src/report.py."),
        {
            "src/parse.py": b"def parse(text):\n    return text.split()  # TODO: quotes\n",
            "src/report.py": b"# TODO: totals\ndef report(rows):\n    return len(rows)\n",
            "src/main.py": b"from parse import parse\n\nprint(parse('a b'))\n",
        },
    ),
    Task(
        "default-timeout",
        "What is the default timeout in client.py?",
        (says(r"\b(17|seventeen)\b"), untouched()),
        Solution(answer="17 seconds."),
        {"client.py": _CLIENT},
    ),
    Task(
        "which-method-raises",
        "Which method in bank.py raises an error when there is not enough money?",
        (says(r"\bwithdraw"), says_not(r"\bdeposit|\bshow\b"), untouched()),
        Solution(answer="withdraw raises a ValueError."),
        {"bank.py": _BANK},
    ),
)
