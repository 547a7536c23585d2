"""A test fails, or a program: mend the code, not the test."""

from __future__ import annotations

from pointcode_local.turnbench.task import Solution, Task, prints, tests_pass, text, untouched

_SUM = b"def sum_to(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
_AREA = text(
    """
    def area(width, height):
        return width + height


    def perimeter(width, height):
        return 2 * (width + height)
    """
)
_JOIN = b'def full_name(first, last):\n    name = first + " " + last\n'
_LONGEST = text(
    """
    def longest(words):
        best = ""
        for word in words:
            if len(word) > len(best):
                best = word
        return bestt
    """
)
_MEAN = b"def mean(values):\n    return sum(values) / len(values)\n"
_GRADE = text(
    """
    def grade(points):
        if points > 90:
            return "A"
        if points > 75:
            return "B"
        return "C"
    """
)
_LOOP = text(
    """
    names = ["Ada", "Grace", "Linus"]

    for name in names
        print("Hello", name)
    """
)


def _test(module: str, function: str, *cases: str) -> bytes:
    lines = [f"        self.assertEqual({case})" for case in cases]
    head = f"import unittest\n\nfrom {module} import {function}\n\n\nclass Test(unittest.TestCase):\n"
    head += f"    def test_{function}(self):\n"
    return (head + "\n".join(lines) + "\n").encode()


TASKS = (
    Task(
        "off-by-one",
        "The test in test_sums.py fails: sum_to(n) must add the numbers from 1 to n, n included. Fix sums.py.",
        (tests_pass("test_sums.py"), untouched("sums.py")),
        Solution({"sums.py": _SUM.replace(b"range(n)", b"range(1, n + 1)")}),
        {"sums.py": _SUM, "test_sums.py": _test("sums", "sum_to", "sum_to(1), 1", "sum_to(4), 10")},
    ),
    Task(
        "wrong-operator",
        "python3 -m unittest fails. Find the bug in shapes.py and fix it.",
        (tests_pass("test_shapes.py"), untouched("shapes.py")),
        Solution({"shapes.py": _AREA.replace(b"    return width + height", b"    return width * height")}),
        {"shapes.py": _AREA, "test_shapes.py": _test("shapes", "area", "area(3, 4), 12", "area(5, 1), 5")},
    ),
    Task(
        "missing-return",
        "full_name in names.py returns None instead of the name. Please fix it.",
        (tests_pass("test_names.py"), untouched("names.py")),
        Solution({"names.py": _JOIN + b"    return name\n"}),
        {
            "names.py": _JOIN,
            "test_names.py": _test("names", "full_name", '"Ada Lovelace", full_name("Ada", "Lovelace")'),
        },
    ),
    Task(
        "misspelt-name",
        "words.py raises a NameError when I call longest. Fix it.",
        (tests_pass("test_words.py"), untouched("words.py")),
        Solution({"words.py": _LONGEST.replace(b"bestt", b"best")}),
        {"words.py": _LONGEST, "test_words.py": _test("words", "longest", 'longest(["a", "abc", "ab"]), "abc"')},
    ),
    Task(
        "empty-list",
        "mean([]) in stats.py raises ZeroDivisionError. Make it return 0 for an empty list.",
        (tests_pass("test_stats.py"), untouched("stats.py")),
        Solution({"stats.py": _MEAN.replace(b"    return", b"    if not values:\n        return 0\n    return")}),
        {"stats.py": _MEAN, "test_stats.py": _test("stats", "mean", "mean([]), 0", "mean([1, 2, 3]), 2")},
    ),
    Task(
        "boundary",
        "In grades.py exactly 90 points must give an A and exactly 75 a B. See test_grades.py. Fix it.",
        (tests_pass("test_grades.py"), untouched("grades.py")),
        Solution({"grades.py": _GRADE.replace(b">", b">=")}),
        {
            "grades.py": _GRADE,
            "test_grades.py": _test("grades", "grade", 'grade(90), "A"', 'grade(75), "B"', 'grade(74), "C"'),
        },
    ),
    Task(
        "missing-colon",
        "hello.py has a syntax error. Fix it.",
        (prints("hello.py", "Hello Ada\nHello Grace\nHello Linus"),),
        Solution({"hello.py": _LOOP.replace(b"in names\n", b"in names:\n")}),
        {"hello.py": _LOOP},
    ),
)
