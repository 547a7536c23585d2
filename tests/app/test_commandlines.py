"""Command lines that an order spells out, and the one that runs a project's tests."""

from __future__ import annotations

import json

import pytest

from pointcode_local.commandlines import PROGRAMS, asks_for_tests, given_command, plain_command, test_command

PYTEST = "def test_a(): ...\n"
UNITTEST = "import unittest\n\n\nclass A(unittest.TestCase): ...\n"


@pytest.mark.parametrize(
    ("order", "command"),
    [
        ("Run python3 -m pytest -q", "python3 -m pytest -q"),
        ("Please run `ls -la | wc -l` and tell me how many files there are", "ls -la | wc -l"),
        ("run git commit -m 'fix the total of all items'.", "git commit -m 'fix the total of all items'"),
        ("Can you run make test?", "make test"),
        ("Run grep -rn TODO .", "grep -rn TODO ."),
        ("run python3 main.py and explain the output", "python3 main.py"),
        ("Execute the command ls", "ls"),
        ("Run python3 on every file in src", ""),  # in doubt: the model writes the command
        ("Run the linter", ""),
        ("Run `make`, then `make install`", ""),
        ("Run ls; then count the lines", ""),
        ("Create run.sh that runs `make`", ""),
        ("Why does `make` fail?", ""),
    ],
)
def test_a_command_that_an_order_spells_out_is_taken_word_by_word(order: str, command: str):
    assert given_command(order, PROGRAMS.__contains__) == command


@pytest.mark.parametrize(
    ("order", "command"),
    [
        ("Run app.py", "python3 app.py"),
        ("Run the script `tools/my deploy.sh`.", ""),
        ("Please run @tools/deploy.sh and tell me what it prints", "bash tools/deploy.sh"),
        ("Run hello.c", "gcc src/hello.c -o src/hello && src/hello"),
        ("Compile hello.c", "gcc src/hello.c -o src/hello"),
        ("Compile one.rs with rustc and run it", "rustc one.rs -o one && ./one"),
        ("Run a.cpp", ""),  # there is b.cpp beside it
        ("Run app.py with the argument 3", ""),
        ("Run app.py and test_app.py", ""),
        ("Run test_app.py", ""),
        ("Run gone.py", ""),
        ('Commit everything with the message "it works"', "git add -A && git commit -m 'it works'"),
        ("Please commit all my changes, using a commit message `x's`", ""),
        ("commit the changes as 'first'.", "git add -A && git commit -m first"),
        ("Commit only app.py with the message 'x'", ""),
        ("Commit the changes", ""),
    ],
)
def test_to_run_a_file_or_to_commit_all_needs_no_model(order: str, command: str):
    names = [
        "app.py",
        "test_app.py",
        "tools/deploy.sh",
        "src/hello.c",
        "one.rs",
        "a.cpp",
        "b.cpp",
        "tools/my deploy.sh",
    ]
    assert plain_command(order, names) == command


def test_a_program_with_a_build_file_is_not_compiled_by_hand():
    assert plain_command("Compile a.c", ["a.c", "Makefile"]) == ""


@pytest.mark.parametrize(
    ("order", "is_asked"),
    [
        ("Run the tests", True),
        ("Run the tests and fix what fails", True),
        ("please run all unit tests", True),
        ("Do the tests pass?", True),
        ("run the test suite.", True),
        ("Run the tests of cart.py", False),
        ("Run tests/test_cart.py", False),
        ("Write tests", False),
        ("Run the testing server", False),
    ],
)
def test_an_order_to_run_all_tests_is_recognised(order: str, is_asked: bool):
    assert asks_for_tests(order) == is_asked


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"tests/test_a.py": PYTEST}, "python3 -m pytest -q"),
        ({"tests/test_a.py": UNITTEST}, "python3 -m unittest discover -s tests"),
        ({"test_a.py": UNITTEST}, "python3 -m unittest discover"),
        ({"package.json": json.dumps({"scripts": {"test": "node --test"}})}, "npm test"),
        ({"package.json": json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1'}})}, ""),
        ({"package.json": "{"}, ""),
        ({"Makefile": "all:\n\ntest: all\n\t./check\n", "tests/test_a.py": PYTEST}, "make test"),
        ({"Makefile": "all:\n"}, ""),
        ({"Cargo.toml": ""}, "cargo test"),
        ({"go.mod": ""}, "go test ./..."),
        ({"main.py": ""}, ""),
    ],
)
def test_the_files_of_a_project_tell_what_runs_its_tests(files: dict[str, str], command: str):
    assert test_command(list(files), files.get) == command


test_command.__test__ = False  # type: ignore[attr-defined]
