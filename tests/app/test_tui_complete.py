"""Slash commands, mentions, fuzzy paths and prompt history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pointcode_local.complete import (
    COMMANDS,
    PromptHistory,
    SlashCommand,
    commands_help,
    fuzzy_paths,
    list_files,
    matching_commands,
    mention,
    mention_at,
    no_such_command,
    parse_slash,
)
from pointcode_local.context_files import mentioned_paths, mentions


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("/help", ("help", "")),
        ("  /mode plan ", ("mode", "plan")),
        ("/resume\nabc", ("resume", "abc")),
        ("/etc/hosts", None),
        ("/unknown", ("unknown", "")),
        ("/unknown thing", None),
        ("help", None),
    ],
)
def test_known_commands_and_lone_words_are_commands(text: str, parsed: tuple[str, str] | None) -> None:
    assert parse_slash(text) == parsed


def test_a_mistyped_command_names_the_nearest_one() -> None:
    assert no_such_command("undoo") == "there is no command /undoo; did you mean /undo?"
    assert no_such_command("fixit", [SlashCommand("fix-it", "")]).endswith("/fix-it?")
    assert no_such_command("xyzzy").endswith("/help lists them")


def test_every_command_is_in_the_help() -> None:
    text = commands_help(COMMANDS)
    assert all(f"/{command.name}" in text for command in COMMANDS)
    assert [command.name for command in matching_commands("re")] == ["resume", "redo"]


@pytest.mark.parametrize(
    ("text", "query"),
    [("@", ""), ("see @src/a", "src/a"), ("mail@host", None), ("@a b", None), ("(@x", "x"), ("", None)]
    + [('see @"my d', "my d"), ("'@x", "x"), ("a/@x", None), ("请看@src/a", "src/a"), ('@"my dir/a.txt" ', None)],
)
def test_a_mention_begins_at_a_word(text: str, query: str | None) -> None:
    assert mention_at(text) == query


@pytest.mark.parametrize("name", ["a.py", "my dir/a file.txt", "it's.md", 'say "hi".md', "日本.txt"])
def test_a_completed_mention_is_read_back_as_the_same_path(name: str, tmp_path: Path) -> None:
    assert mentioned_paths(f"look at {mention(name)} please") == [name]


def test_a_mention_may_touch_words_that_are_written_without_spaces(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("text of a")
    for prompt in ("请看@a.py的函数。", "見て@a.py、次に", "see @a.py."):
        assert [added.text for added in mentions(prompt, tmp_path, lambda _: True)] == [
            "[contents of @a.py]\ntext of a"
        ]
    assert mentioned_paths("mail ada@a.py or x+y@a.py") == []


def test_file_names_come_before_paths_and_loose_matches() -> None:
    paths = ["docs/settings-guide.md", "src/settings.py", "src/app/test_settings.py", "s/e/t/x", "other.txt"]
    assert fuzzy_paths("sett", paths) == ["src/settings.py", "docs/settings-guide.md", "src/app/test_settings.py"]
    assert fuzzy_paths("setx", paths) == ["s/e/t/x"]
    assert fuzzy_paths("(", paths) == []


def test_files_that_git_ignores_are_not_offered(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "out.o").write_text("x")
    (tmp_path / "new file é.py").write_text("x")
    assert sorted(list_files(tmp_path)) == [".gitignore", "new file é.py"]


def test_without_git_the_folder_is_walked_past_caches(tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x.js").write_text("x")
    (tmp_path / "a.py").write_text("x")
    assert list_files(tmp_path) == ["a.py"]


def test_history_keeps_order_skips_repeats_and_survives_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path / "h.jsonl")
    for text in ("one", "one", "  ", "two\nlines", "one"):
        history.add(text)
    with (tmp_path / "h.jsonl").open("a") as file:
        file.write(f"{'[' * 200_000}\nhalf\n")
    assert PromptHistory(tmp_path / "h.jsonl").entries == ["one", "two\nlines", "one"]
    assert history.search("o") == ["one", "two\nlines"]
    (tmp_path / "file").write_text("x")
    blocked = PromptHistory(tmp_path / "file" / "h.jsonl")
    blocked.add("kept for this run")
    assert blocked.entries == ["kept for this run"]
