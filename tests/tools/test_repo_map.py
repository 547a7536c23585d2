"""The repository's map: what is in it, in which order, and that only changed files are read again."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools import map_pool, repo_map_worker
from pointcode_local.tools.languages import LANGUAGES, MAX_SOURCE_BYTES
from pointcode_local.tools.map_rank import FileTags, rank
from pointcode_local.tools.repo_map import MapStore, RepoMap, Shown, is_worth_a_map
from pointcode_local.tools.tags import TAGGED, Tag, definitions, words

from .test_symbols import SOURCES

NAMES = {
    "a.py": ["A", "m", "f"],
    "a.js": ["f", "A", "m", "s", "g", "h"],
    "a.ts": ["I", "B", "m", "T1", "E", "k"],
    "a.tsx": ["C", "D"],
    "a.rs": ["S", "new", "clone", "T", "a", "z"],
    "a.go": ["S", "M", "F"],
    "a.c": ["s", "f", "foo", "e"],
    "a.cpp": ["A", "m", "f", "q"],
    "A.java": ["A", "A", "m", "I", "E", "R"],
    "a.sh": ["f", "g"],
}


@pytest.mark.parametrize("name", NAMES)
def test_tags_name_the_definitions_of_every_language(name: str) -> None:
    language = LANGUAGES["." + name.split(".")[1]]
    assert language in TAGGED
    assert [tag.name for tag in definitions(SOURCES[name][0].encode(), language)] == NAMES[name]


def test_a_signature_is_one_line_up_to_the_body_and_inner_functions_are_left_out() -> None:
    source = (
        b"class A(\n    B,\n):\n    async def put(self, key: str) -> None:\n"
        b"        def inner(): ...\n        return 1\n"
    )
    assert [(t.signature, t.line, t.depth) for t in definitions(source, "python")] == [
        ("class A( B, )", 1, 0),
        ("async def put(self, key: str) -> None", 4, 1),
    ]


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(sorted(TAGGED)))
def test_no_bytes_make_tagging_fail(data: bytes, language: str) -> None:
    for tag in definitions(data, language):
        assert tag.signature.isprintable()
    words(data)


def file(name: str, defines: list[str], uses: list[str]) -> FileTags:
    tags = tuple(Tag(n, f"def {n}()", i + 1, 0) for i, n in enumerate(defines))
    return FileTags(name, tags, words(" ".join({*defines, *uses}).encode()))


def test_what_important_files_use_comes_before_what_nobody_uses() -> None:
    files = [
        file("core.py", ["connect", "unused"], []),
        file("store.py", ["save"], ["connect"]),
        *(file(f"user{i}.py", [f"main{i}"], ["save"]) for i in range(4)),
        *(file(f"run{i}.py", ["run"], ["run"]) for i in range(15)),  # a name of everybody tells nothing
    ]
    order = [one.tag.name for one in rank(files)]
    assert order.index("save") < order.index("main0") and order.index("connect") < order.index("main0")
    assert order.index("save") < order.index("unused") and order.index("connect") < order.index("run")
    assert rank([]) == []


def test_a_name_that_the_parser_only_expected_ranks_like_one_that_nobody_uses() -> None:
    files = [FileTags("a.py", [Tag("", "def", 1, 0)], words(b"")), FileTags("b.py", [], ""), file("c.py", ["used"], [])]
    assert [one.tag.name for one in rank(files, 5)] == ["", "used"]


def project(root: Path, n: int = 9) -> None:
    root.mkdir(exist_ok=True)
    (root / "core.py").write_text("class Store:\n    def put(self, key):\n        return key\n")
    for i in range(n):
        (root / f"use{i}.py").write_text(f"from core import Store\ndef user_{i}():\n    return Store().put({i})\n")


async def test_the_map_shows_the_most_used_definitions_grouped_by_file(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    project(root)
    assert is_worth_a_map(root)
    store = MapStore(root, tmp_path / "cache")
    assert store.read() is None
    found = await store.refresh()
    assert found is not None and (found.n_files, found.n_tagged) == (10, 10)
    text = found.text(1000)
    assert text.splitlines()[0].startswith("[repository map: ") and "10 source files" in text
    assert text.splitlines()[1:4] == ["core.py:", "  class Store", "    def put(self, key)"]
    assert store.read() == found
    assert not any(root.rglob("map.json")), "nothing is kept in the repository"


def test_only_files_that_changed_are_read_again(tmp_path: Path) -> None:
    root, kept = tmp_path / "ws", tmp_path / "kept"
    project(root)
    assert repo_map_worker.update(root, kept) == 10
    assert repo_map_worker.update(root, kept) == 0
    (root / "use0.py").write_text("def replaced():\n    return 1\n")
    (root / "use1.py").unlink()
    assert repo_map_worker.update(root, kept) == 1
    found = MapStore(root, tmp_path)
    found.folder = kept
    text = (found.read() or pytest.fail("no map")).text(2000)
    assert "replaced" in text and "user_0" not in text and "user_1" not in text


def test_a_few_changes_are_kept_beside_the_large_file_until_they_are_many(tmp_path: Path) -> None:
    root, kept = tmp_path / "ws", tmp_path / "kept"
    project(root, 120)
    assert repo_map_worker.update(root, kept) == 121
    large = (kept / "tags.json").read_bytes()
    for name in ("use0.py", "use1.py", "use0.py"):
        with (root / name).open("a") as changed:
            changed.write("def replaced():\n    return 1\n")
        assert repo_map_worker.update(root, kept) == 1
    assert (kept / "tags.json").read_bytes() == large
    (root / "core.py").write_text("")
    assert repo_map_worker.update(root, kept) == 1
    assert (kept / "tags.json").read_bytes() != large and not (kept / "recent.json").exists()
    (root / "core.py").unlink()
    assert repo_map_worker.update(root, kept) == 0
    fresh = tmp_path / "fresh"
    repo_map_worker.update(root, fresh)
    assert (fresh / "map.json").read_bytes() == (kept / "map.json").read_bytes()


def test_several_processes_make_the_same_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    project(root, 80)
    repo_map_worker.update(root, tmp_path / "one")
    monkeypatch.setattr(map_pool, "tagged", partial(map_pool.tagged, n_processes=2, parallel_from=1))
    repo_map_worker.update(root, tmp_path / "two")
    assert (tmp_path / "one" / "map.json").read_bytes() == (tmp_path / "two" / "map.json").read_bytes()


def test_a_map_is_written_of_what_was_read_when_reading_takes_long(tmp_path: Path) -> None:
    root, kept = tmp_path / "ws", tmp_path / "kept"
    project(root, 80)
    store = MapStore(root, tmp_path)
    store.folder = kept
    n_read = repo_map_worker.update(root, kept, first_s=-1.0, last_s=-1.0)  # both limits pass with the first file
    found = store.read()
    assert n_read == 1 and found is not None and (found.n_files, found.n_tagged) == (81, 1)
    assert "1 of them read so far" in found.text(500)
    assert repo_map_worker.update(root, kept) == 80
    assert (store.read() or pytest.fail("no map")).n_tagged == 81


def test_what_git_ignores_links_and_huge_files_are_not_in_the_map(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    project(root, 1)
    (root / ".gitignore").write_text("generated.py\n")
    (root / "generated.py").write_text("def generated(): pass\n")
    (root / "link.py").symlink_to(root / "core.py")
    (root / "huge.py").write_text("def huge(): pass\n" + "#" * MAX_SOURCE_BYTES)
    (root / "bad.py").write_bytes(b"def fine(): pass\n\xff\xfe(((")
    (root / "odd name\n.py").write_text("def odd(): pass\n")
    for with_git in (False, True):
        if with_git:
            subprocess.run(["git", "init", "-q", root], check=True)
        names = [one.name for one in repo_map_worker._listed(root)]  # pyright: ignore[reportPrivateUsage]
        assert names == ["bad.py", "core.py", "odd name\n.py", "use0.py"]


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    root, kept = tmp_path / "ws", tmp_path / "kept"
    project(root, 1)
    repo_map_worker.update(root, kept)
    for name in ("map.json", "tags.json"):
        (kept / name).write_bytes((kept / name).read_bytes()[:50])
    assert repo_map_worker.update(root, kept) == 2
    for name in ("map.json", "tags.json"):
        (kept / name).write_text("[" * 200_000)
    assert repo_map_worker.update(root, kept) == 2


def test_the_text_keeps_its_budget_and_hides_what_must_not_be_shown() -> None:
    shown = tuple(Shown(f"f{i % 20}.py", i, i % 2, f"def function_number_{i}(self)", i) for i in range(2000))
    whole = RepoMap(shown, 20, 20)
    for budget in (100, 300, 1500):
        assert len(whole.text(budget)) <= budget * 3
    assert "f1.py" not in whole.text(1500, lambda name: name == "f1.py")
    assert whole.text(10) == ""


def test_small_folders_and_a_home_folder_need_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path / "ws", 3)
    assert not is_worth_a_map(tmp_path / "ws")
    project(tmp_path / "ws", 20)
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "ws"))
    assert not is_worth_a_map(tmp_path / "ws")
