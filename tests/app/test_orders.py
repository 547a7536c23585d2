"""What a prompt asks of a small model is read from its verbs and from the files it names."""

from __future__ import annotations

import pytest

from pointcode_local.orders import identifiers, named_files, no_such_file, read_order, rename_words
from pointcode_local.smalltalk import is_small_talk

KNOWN = ["app.py", "lib/util.py", "test_app.py", "Makefile", "notes.txt", "a/same.py", "b/same.py"]


@pytest.mark.parametrize(
    ("text", "kind", "targets"),
    [
        ("Create hello.py that prints hello.", "create", ("hello.py",)),
        ("I need a file readme.md with a title", "create", ("readme.md",)),
        ("Please make docs/guide.md. It has a list with install, run and test.", "create", ("docs/guide.md",)),
        ("Create a.txt with alpha and b.txt with beta.", "create", ("a.txt", "b.txt")),
        ("Add a function f(x) to util.py with a test in test_util.py", "create", ("lib/util.py", "test_util.py")),
        ("Add f to util.py, and write a test for it to test_util.py", "create", ("lib/util.py", "test_util.py")),
        ("Add a function f to util.py with a test in test_app.py", "change", ("lib/util.py", "test_app.py")),
        ("Add a test for f to test_app.py", "change", ("test_app.py",)),
        ("Add a test for f in app.py to test_app.py", "change", ("test_app.py",)),
        ("Fix app.py and add a test to test_app.py", "change", ("app.py", "test_app.py")),
        ("Add tests for app.py", "change", ("app.py",)),
        ("Write tests for util.py to test_util.py", "create", ("test_util.py",)),
        ("Create new.py with the function of app.py in it", "create", ("new.py",)),
        ("Fix app.py, the test in test_app.py fails.", "change", ("app.py",)),
        ("The test test_app.py is wrong. Fix it.", "change", ("test_app.py",)),
        ("In util.py the function must return 2.", "change", ("lib/util.py",)),
        ("Could you fix app.py?", "change", ("app.py",)),
        ("Use tabs in the Makefile.", "change", ("Makefile",)),
        ("app.py has a syntax error", "change", ("app.py",)),
        ("Rename the function f to g in app.py and util.py.", "rename", ("app.py", "lib/util.py")),
        ("Rename the file notes.txt to ideas.txt.", "command", ()),
        ("Run app.py and tell me what it prints.", "command", ()),
        ("Rename notes.txt to ideas.txt", "command", ()),
        ("Please rename @lib/util.py to lib/tools.py.", "command", ()),
        ("Rename app.run to app.start in app.py", "rename", ("app.py",)),
        ("@app.py", "question", ()),
        ("Delete notes.txt", "command", ()),
        ("How many lines does notes.txt have?", "command", ()),
        ("What does app.py do?", "question", ()),
        ("Why does app.py fail?", "question", ()),
        ("Review app.py", "question", ()),
        ("Explain app.py and give a table of its functions", "question", ()),
        ("Write a short summary of app.py", "question", ()),
        ("Give me a list of the functions in app.py", "question", ()),
        ("Make a table of contents for notes.txt", "change", ("notes.txt",)),
        ("Write a list of fruits in notes.txt", "change", ("notes.txt",)),
        ("Write a summary of app.py to notes.txt", "change", ("notes.txt",)),
        ("Give the function f in app.py a docstring", "change", ("app.py",)),
        ("Review app.py. Name what is wrong, with line numbers; change nothing.", "question", ()),
        ("Find the bug in app.py. Don't change the code.", "question", ()),
        ("app.py: do not edit anything yet, say what is wrong", "question", ()),
        ("Fix app.py, change nothing else", "change", ("app.py",)),
        ("Fix app.py and don't touch test_app.py", "change", ("app.py",)),
        ('Delete "notes.txt"', "command", ()),
        ("Rename 'notes.txt' to `ideas.txt`", "command", ()),
        ("Implement fib.py with a function fib", "create", ("fib.py",)),
        ("Explain the change in app.py", "question", ()),
        ("Write a poem", "question", ()),
        ("How do I list files?", "question", ()),
    ],
)
def test_an_order_is_read_by_its_verbs_and_files(text: str, kind: str, targets: tuple[str, ...]):
    order = read_order(text, KNOWN)
    assert (order.kind, order.targets) == (kind, targets)


def test_a_question_below_pasted_code_is_about_that_and_runs_nothing():
    pasted = "def f(x):\n    return x + 1\n\nWhat does this print for 2?"
    assert read_order(pasted, KNOWN).kind == "question"
    assert read_order("What does app.py print?", KNOWN).kind == "command"


def test_it_is_the_file_that_was_changed_before():
    assert read_order("Edit it so that it prints goodbye.", KNOWN, ["hello.py"]).targets == ("hello.py",)
    assert read_order('Change the title to "Example".', KNOWN, ["a.md"]).targets == ("a.md",)
    assert read_order("Edit it so that it prints goodbye.", KNOWN).targets == ()
    assert read_order("Write a poem", KNOWN, ["hello.py"]).kind == "question"
    assert read_order("Add a function mul(a, b)", KNOWN, ["sum.py"]).targets == ("sum.py",)
    assert read_order("Add a function mul(a, b)", KNOWN).targets == ()
    assert read_order("Write a line about Paris", KNOWN, ["app.py", "b.md"]).targets == ("b.md",)
    assert read_order("What is a function?", KNOWN, ["sum.py"]).kind == "question"


def test_no_command_is_asked_for_where_none_may_run():
    assert read_order("Run app.py", KNOWN, can_run=False).kind != "command"


def test_a_file_of_any_kind_gets_another_name_by_a_command():
    assert read_order("Rename logo.png to icon.png", ["logo.png"]).kind == "command"


def test_a_mention_names_the_file_itself():
    known = ["app.py", "lib/util.py", "my notes.md"]
    assert named_files('@app.py, @lib/util.py and @"my notes.md"', known) == (
        ["my notes.md", "app.py", "lib/util.py"],
        [],
    )
    assert read_order("Add a docstring to @lib/util.py", known).targets == ("lib/util.py",)
    assert read_order("Add a docstring to @lib/util.py", known).kind == "change"


@pytest.mark.parametrize(
    ("text", "kind", "targets"),
    [
        ('In "my file.py" rename the function f to g.', "rename", ("my file.py",)),
        ("Fix my file.py", "change", ("my file.py",)),
        ("In app/(shop)/page.tsx change the title", "change", ("app/(shop)/page.tsx",)),
        ('Fix page (1).tsx, and it\'s "q".py', "change", ("lib/page (1).tsx", 'it\'s "q".py')),
        ("Add a function f to `my file.py`", "change", ("my file.py",)),
        ("In 'notes copy' fix the typo", "change", ("notes copy",)),
        ("Edit the notes copy", "question", ()),
        ('Delete "my file.py"', "command", ()),
        ('Rename "my file.py" to "our file.py"', "command", ()),
        ('Create "release notes.md" with a title.', "create", ("release notes.md",)),
    ],
)
def test_a_name_may_hold_spaces_quotes_and_brackets(text: str, kind: str, targets: tuple[str, ...]):
    known = ["my file.py", "app/(auth)/page.tsx", "app/(shop)/page.tsx", "lib/page (1).tsx", 'it\'s "q".py']
    order = read_order(text, [*known, "notes copy"])
    assert (order.kind, order.targets) == (kind, targets)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Fix gone.py", "gone.py"),
        ("In gone.py rename f to g", "gone.py"),
        ("What does lib/gone.py do?", "lib/gone.py"),
        ("Can you fix gone.py?", "gone.py"),
        ("Fix app.py as in gone.py", ""),
        ("Explain three.js", ""),
        ("Replace console.log by log.info", ""),
        ("How do I write a package.json?", ""),
        ("Create gone.py", ""),
    ],
)
def test_an_order_may_name_a_file_that_is_not_there(text: str, missing: str):
    assert no_such_file(text, KNOWN, read_order(text, KNOWN)) == missing


def test_a_bare_name_finds_its_folder_only_when_there_is_one():
    assert named_files("`util.py`, same.py and ./app.py; see e.g. version 1.2.3", KNOWN) == (
        ["lib/util.py", "app.py"],
        [],
    )
    assert named_files("put x.y into new/one.toml, http://a.b/c.py", KNOWN)[1] == ["new/one.toml"]


def test_names_in_code_are_told_from_words():
    assert identifiers("where is parse_date or `load` or MyClass, a TODO, not Word?") == [
        "load", "parse_date", "MyClass", "TODO",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "body", "names"),
    [
        ("Rename the function calc to multiply in app.py.", "def calc(): ...", ("calc", "multiply")),
        ('rename the key "desc" to "description"', '{"desc": 1}', ("desc", "description")),
        ("Rename the class Dog into Hound everywhere", "class Dog: ...", ("Dog", "Hound")),
        ("Rename .btn to .button in style.css", ".btn {}", ("btn", "button")),
        ("Rename x to y", "z = 1", ("", "y")),
        ("Rename it.", "z = 1", ("", "")),
    ],
)
def test_the_old_and_the_new_name_are_found(text: str, body: str, names: tuple[str, str]):
    assert rename_words(text, body) == names


@pytest.mark.parametrize(
    ("text", "is_talk"),
    [
        ("hi", True),
        ("Hello, can you help me?", True),
        ("What can you do?", True),
        ("Thanks, that works!", True),
        ("ok", True),
        ("What is in this folder?", False),
        ("test.py fails. Why?", False),
        ("Hi, what does app.py do?", False),
        ("help.py is empty. Why?", False),
        ("What do you think of the cart?", False),
    ],
)
def test_a_greeting_is_not_about_the_files(text: str, is_talk: bool):
    assert is_small_talk(text) == is_talk
