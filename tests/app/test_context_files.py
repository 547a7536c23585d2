"""AGENTS.md files and mentions."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from pointcode_local.context_files import MAX_RULES_BYTES, mentioned_paths, mentions, rules


def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "sub/deep").mkdir(parents=True)
    return root


def test_rules_come_from_the_root_down_to_the_folder(tmp_path: Path):
    root = repository(tmp_path)
    (tmp_path / "AGENTS.md").write_text("OUTSIDE")
    (root / "AGENTS.md").write_text("ROOT")
    (root / "sub/AGENTS.md").write_text("SUB")
    (root / "sub/deep/other.md").write_text("x")
    texts = [rule.text for rule in rules(root / "sub/deep")]
    assert ["ROOT" in texts[0], "SUB" in texts[1], len(texts)] == [True, True, 2]
    assert [("ROOT" in r.text) for r in rules(root)] == [True]


def test_without_a_repository_only_the_folder_counts(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("PARENT")
    (tmp_path / "a").mkdir()
    assert rules(tmp_path / "a") == []


def test_the_persons_own_rules_come_first(tmp_path: Path):
    root = repository(tmp_path)
    (root / "AGENTS.md").write_text("ROOT")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/AGENTS.md").write_text("MINE")
    assert ["MINE" in r.text for r in rules(root, tmp_path / "home")] == [True, False]


def test_what_is_too_long_is_cut_and_the_deepest_is_kept(tmp_path: Path):
    root = repository(tmp_path)
    (root / "AGENTS.md").write_text("ROOT " + "ü" * MAX_RULES_BYTES)
    (root / "sub/AGENTS.md").write_text("SUB " + "x" * 1000)
    upper, lower = rules(root / "sub")
    assert lower.text.endswith("x" * 1000)
    assert "ROOT" in upper.text and "cut:" in upper.text
    assert len((upper.text + lower.text).encode()) < MAX_RULES_BYTES + 1000


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        ("see @a.txt and @b/c.py", ["a.txt", "b/c.py"]),
        ('see @"with space.txt"', ["with space.txt"]),
        ("mail me@example.invalid", []),
        ("twice @a @a", ["a"]),
        ("@pytest.fixture", ["pytest.fixture"]),
        ("`@x`", ["x"]),
    ],
)
def test_mentions_are_found_in_a_prompt(prompt: str, want: list[str]):
    assert mentioned_paths(prompt) == want


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_rules_and_mentions_are_read_in_their_encoding(tmp_path: Path, encoding: str):
    (tmp_path / "AGENTS.md").write_bytes("Schreibe Grüße.\n".encode(encoding))
    (tmp_path / "long.txt").write_bytes(("Grüße 😀\n" if encoding != "latin-1" else "Grüße\n").encode(encoding) * 12000)
    (rule,) = rules(tmp_path)
    assert rule.text.endswith("\nSchreibe Grüße.")
    (added,) = mentions("See @long.txt.", tmp_path, lambda path: True)
    _, *lines, last = added.text.split("\n")
    assert len(lines) > 2000 and set(lines[1:-1]) <= {"Grüße 😀", "Grüße", "\ufeffGrüße 😀"}
    assert "\ufffd" not in rule.text and "[cut after" in last


def test_a_mention_finds_a_name_in_another_form_of_unicode(tmp_path: Path):
    (tmp_path / unicodedata.normalize("NFD", "é.txt")).write_text("ACCENT")
    (added,) = mentions(f"See @{unicodedata.normalize('NFC', 'é.txt')}.", tmp_path, lambda path: True)
    assert "ACCENT" in added.text


def test_mentioned_files_are_attached(tmp_path: Path):
    (tmp_path / "a.txt").write_text("TEXT\n")
    (tmp_path / "with space.txt").write_text("SPACE")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x.py").write_text("x")
    (tmp_path / "p.png").write_bytes(b"\x89PNG")
    (tmp_path / "b.bin").write_bytes(b"\0\1")
    (tmp_path / "secret").write_text("HIDDEN")
    (tmp_path / "big.txt").write_text("line\n" * 40_000)
    prompt = 'Look at @a.txt, @"with space.txt" @d @p.png @b.bin @secret @nothing @big.txt.'
    found = {c.source: c.text for c in mentions(prompt, tmp_path, lambda path: path.name != "secret")}
    assert "TEXT" in found["@a.txt"] and "SPACE" in found["@with space.txt"]
    assert "x.py" in found["@d"]
    assert "image" in found["@p.png"] and "binary" in found["@b.bin"]
    assert "HIDDEN" not in found["@secret"] and "permission" in found["@secret"]
    assert "@nothing" not in found
    assert "cut after" in found["@big.txt"]
