"""New files."""

from __future__ import annotations

from pointcode_local.turnbench.task import Solution, Task, holds, json_is, matches, prints, same_text, text

TASKS = (
    Task(
        "greeting",
        "Create greet.py that prints Good morning, world!",
        (prints("greet.py", "Good morning, world!"),),
        Solution({"greet.py": b'print("Good morning, world!")\n'}),
    ),
    Task(
        "settings-json",
        'Create a file settings.json with the keys name ("demo") and debug (true).',
        (json_is("settings.json", {"name": "demo", "debug": True}),),
        Solution({"settings.json": b'{"name": "demo", "debug": true}\n'}),
    ),
    Task(
        "is-even",
        "Write a file mathutil.py with a function is_even(n) that returns True when n is even and False otherwise.",
        (holds("from mathutil import is_even\nassert is_even(4) is True and is_even(7) is False and is_even(0)"),),
        Solution({"mathutil.py": b"def is_even(n):\n    return n % 2 == 0\n"}),
    ),
    Task(
        "people-csv",
        "Make people.csv with the header name,age and two rows: Ada is 36 and Linus is 54.",
        (matches("people.csv", r"\Aname, ?age\r?\n\"?Ada\"?, ?36\r?\n\"?Linus\"?, ?54\s*\Z"),),
        Solution({"people.csv": b"name,age\nAda,36\nLinus,54\n"}),
    ),
    Task(
        "guide",
        'Please create docs/guide.md. It needs the title "Guide" and a bullet list with install, run and test.',
        (matches("docs/guide.md", r"(?i)\A# Guide\s*$", r"(?i)^[-*] +install", r"(?i)^[-*] +run", r"(?i)^[-*] +test"),),
        Solution({"docs/guide.md": b"# Guide\n\n- install\n- run\n- test\n"}),
    ),
    Task(
        "counter-class",
        "Create counter.py with a class Counter. It has an attribute value that starts at 0 and a method increment() "
        "that adds 1 to it.",
        (holds("from counter import Counter\nc = Counter()\nassert c.value == 0\nc.increment()\nassert c.value == 1"),),
        Solution(
            {
                "counter.py": text(
                    """
                    class Counter:
                        def __init__(self):
                            self.value = 0

                        def increment(self):
                            self.value += 1
                    """
                )
            }
        ),
    ),
    Task(
        "sum-arguments",
        "Write a Python script sum.py that prints the sum of the whole numbers given on its command line, "
        "e.g. `python sum.py 1 2 3` prints 6.",
        (prints("sum.py", "6", "1", "2", "3"), prints("sum.py", "50", "8", "42")),
        Solution({"sum.py": b"import sys\n\nprint(sum(int(a) for a in sys.argv[1:]))\n"}),
    ),
    Task(
        "two-files",
        "Create a.txt with the text alpha and b.txt with the text beta.",
        (same_text("a.txt", "alpha"), same_text("b.txt", "beta")),
        Solution({"a.txt": b"alpha\n", "b.txt": b"beta\n"}),
    ),
)
