"""Names that change, in one file and across several."""

from __future__ import annotations

from pointcode_local.turnbench.task import (
    Solution,
    Task,
    gone,
    holds,
    json_is,
    lacks,
    matches,
    prints,
    same_text,
    text,
    untouched,
)

_APP = text(
    """
    def calc(a, b):
        return a * b


    print(calc(2, 3))
    print(calc(4, 5))
    """
)
_LIMITS = b"TIMEOUT = 30\nRETRIES = 3\n\n\ndef budget():\n    return TIMEOUT * RETRIES\n"
_ANIMALS = b'class Dog:\n    def speak(self):\n        return "woof"\n'
_MAIN = b"from animals import Dog\n\nprint(Dog().speak())\n"
_STORE = text(
    """
    class Store:
        def __init__(self):
            self.items = {}

        def put(self, key, value):
            self.items[key] = value

        def get(self, key):
            return self.items[key]


    store = Store()
    store.put("a", 1)
    print(store.get("a"))
    """
)
_PACKAGE = b'{\n  "name": "demo",\n  "version": "1.0.0",\n  "desc": "A small demo",\n  "private": true\n}\n'
_STYLE = b".btn {\n  color: white;\n  padding: 4px;\n}\n\n.btn:hover {\n  color: black;\n}\n"

TASKS = (
    Task(
        "function",
        "Rename the function calc to multiply in app.py.",
        (prints("app.py", "6\n20"), matches("app.py", r"^def multiply\(a, b\):"), lacks("app.py", r"\bcalc\b")),
        Solution({"app.py": _APP.replace(b"calc", b"multiply")}),
        {"app.py": _APP},
    ),
    Task(
        "constant",
        "In limits.py rename the constant TIMEOUT to TIMEOUT_S.",
        (
            holds("import limits\nassert limits.TIMEOUT_S == 30 and limits.RETRIES == 3 and limits.budget() == 90"),
            lacks("limits.py", r"\bTIMEOUT\b"),
        ),
        Solution({"limits.py": _LIMITS.replace(b"TIMEOUT", b"TIMEOUT_S")}),
        {"limits.py": _LIMITS},
    ),
    Task(
        "class-two-files",
        "Rename the class Dog to Hound in animals.py and main.py.",
        (
            prints("main.py", "woof"),
            matches("animals.py", r"^class Hound:"),
            lacks("main.py", r"\bDog\b"),
            lacks("animals.py", r"\bDog\b"),
        ),
        Solution({"animals.py": _ANIMALS.replace(b"Dog", b"Hound"), "main.py": _MAIN.replace(b"Dog", b"Hound")}),
        {"animals.py": _ANIMALS, "main.py": _MAIN},
    ),
    Task(
        "file",
        "Rename the file notes.txt to ideas.txt.",
        (gone("notes.txt"), same_text("ideas.txt", "buy milk\ncall Ada"), untouched("notes.txt")),
        Solution({"notes.txt": None, "ideas.txt": b"buy milk\ncall Ada\n"}),
        {"notes.txt": b"buy milk\ncall Ada\n", "todo.txt": b"nothing\n"},
    ),
    Task(
        "method",
        "Rename the method get of the class Store in store.py to fetch, also where it is called.",
        (prints("store.py", "1"), matches("store.py", r"def fetch\(self, key\)"), lacks("store.py", r"\bget\b")),
        Solution({"store.py": _STORE.replace(b"get", b"fetch")}),
        {"store.py": _STORE},
    ),
    Task(
        "json-key",
        'In package.json rename the key "desc" to "description".',
        (
            json_is(
                "package.json", {"name": "demo", "version": "1.0.0", "description": "A small demo", "private": True}
            ),
        ),
        Solution({"package.json": _PACKAGE.replace(b"desc", b"description")}),
        {"package.json": _PACKAGE},
    ),
    Task(
        "css-class",
        "Rename the CSS class btn to button in style.css.",
        (same_text("style.css", _STYLE.replace(b".btn", b".button").decode()),),
        Solution({"style.css": _STYLE.replace(b".btn", b".button")}),
        {"style.css": _STYLE},
    ),
)
