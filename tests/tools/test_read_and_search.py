"""Reading pages, finding files, searching lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointcode_local.tools.base import ToolError
from pointcode_local.tools.globbing import compile_glob
from pointcode_local.tools.search import Query, compile_query, fixed_text

from .tool_kit import Bench

RG = shutil.which("rg")


# ------------------------------------------------------------------------------------------------- read
def test_pages_follow_each_other_without_a_hole(bench: Bench) -> None:
    bench.put("f.txt", "".join(f"row {n:06}\n" for n in range(1, 5001)))
    seen: list[int] = []
    offset = 1
    while True:
        text = bench.ok("read", path="f.txt", offset=offset)
        seen += [int(n) for n in re.findall(r"row (\d+)", text)]
        following = re.search(r"offset=(\d+)", text)
        if following is None:
            break
        assert "5,000" in text
        offset = int(following.group(1))
    assert seen == list(range(1, 5001))


def test_long_lines_and_pages_are_cut_with_a_notice(bench: Bench) -> None:
    bench.put("one.txt", "START" + "x" * 500_000)
    text = bench.ok("read", path="one.txt")
    assert text.startswith("1\tSTART") and "more characters" in text and len(text) < 5000
    bench.put("many.txt", "".join(f"L{n:03} {'y' * 3000}\n" for n in range(300)))
    text = bench.ok("read", path="many.txt")
    assert len(text) < 70_000 and "offset=" in text


def test_line_numbers_count_newlines_only(bench: Bench) -> None:
    bench.put("f.txt", "a\x0cb\n" + "c\u2028d\n" + "e\x85f\n" + "g\x0b\x1ch\ri\nfive\nsix\n")
    assert bench.ok("read", path="f.txt", offset=5, limit=1).startswith("5\tfive\n")
    assert "\n  5: five" in bench.ok("grep", pattern="five")
    assert bench.ok("read", path="f.txt", offset=-1).startswith("6\tsix\n")


def test_past_the_end_empty_missing_folder_and_special_files_say_what_they_are(bench: Bench) -> None:
    bench.put("f.txt", "a\nb\nc\n")
    bench.put("empty.txt", "")
    bench.put("d/x.txt", "x\n")
    os.mkfifo(bench.root / "pipe")
    assert "3 lines" in bench.refused("read", path="f.txt", offset=9)
    assert "empty" in bench.ok("read", path="empty.txt")
    assert "does not exist" in bench.refused("read", path="no.txt")
    assert "did you mean f.txt" in bench.refused("read", path="F.md")
    assert "folder" in bench.refused("read", path="d")
    assert "regular" in bench.refused("read", path="pipe")
    assert "regular" in bench.refused("read", path="/dev/zero")


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"%PDF-1.7\nplain words\n",
        b"\x7fELF\x02\x01",
        b"PK\x03\x04zip",
        b"text\x00more",
        bytes(range(1, 32)) * 10,
        b"\xff\xd8\xff\xe0JFIF",
        b"\xff\xfe\x00",
    ],
)
def test_binary_files_are_known_by_their_content(bench: Bench, data: bytes) -> None:
    bench.put("f.txt", data)
    assert "not a text file" in bench.refused("read", path="f.txt")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_marked_encodings_are_read_and_the_mark_is_never_shown(bench: Bench, encoding: str) -> None:
    bench.put("f.txt", "\ufefftitle é\n".encode(encoding))
    assert bench.ok("read", path="f.txt").startswith("1\ttitle é\n")
    assert "1: title é" in bench.ok("grep", pattern="^title")


def test_bytes_that_are_not_utf8_are_replaced_not_dropped(bench: Bench) -> None:
    bench.put("f.txt", b"ok \xff\xfe\x80 \xc3 end\n\xc3\xa9\n")
    text = bench.ok("read", path="f.txt")
    assert "ok \ufffd\ufffd\ufffd \ufffd end" in text and "é" in text
    text.encode()
    assert "\ufffd end" in bench.ok("grep", pattern="end")


# ------------------------------------------------------------------------------------------------- glob, list
def test_glob_finds_dotfiles_and_dot_folders_and_never_git(bench: Bench) -> None:
    for name in (".github/workflows/ci.yml", ".editorconfig", "top.txt", "a/b/deep.txt", ".git/config", "sub/.git"):
        bench.put(name, "x\n")
    assert bench.ok("glob", pattern=".github/workflows/*.yml") == ".github/workflows/ci.yml\n"
    assert bench.ok("glob", pattern="**/*.txt") == "a/b/deep.txt\ntop.txt\n" == bench.ok("glob", pattern="*.txt")
    assert ".git/" not in bench.ok("glob", pattern="**") and "sub/.git" not in bench.ok("list", depth=5)
    assert "No files" in bench.ok("glob", pattern="*.none")


@pytest.mark.parametrize(
    "name", ["app/[id]/page.tsx", "app/(group)/a.ts", "{a,b}.txt", "a b.txt", "x*.txt", "q?.txt", "[!a].md"]
)
def test_names_with_pattern_characters_are_taken_literally_first(bench: Bench, name: str) -> None:
    bench.put(name, "needle\n")
    bench.put("app/i/page.tsx", "decoy\n")
    assert bench.ok("glob", pattern=name) == name + "\n"
    assert "needle" in bench.ok("read", path=name)
    assert "needle" in bench.ok("grep", pattern="needle", path=name)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/a.py"], ["a.pyc"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "a.py", "y/src/a.py"]),
        ("src/**", ["src/a", "src/x/a"], ["a", "xsrc/a"]),
        ("**/test_*.py", ["test_a.py", "x/y/test_b.py"], ["x/a_test_b.py"]),
        ("*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.t"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("[!a]*.c", ["b.c"], ["a.c"]),
        ("[a-c].?", ["b.x"], ["d.x", "b.", "b.xy"]),
        ("./x", ["x", "y/x"], ["xx"]),
        ("d/", ["d/a", "d/b/c"], ["d"]),
        ("a\\*b", ["a*b"], ["axb"]),
    ],
)
def test_globs_mean_what_ripgrep_means(pattern: str, yes: list[str], no: list[str]) -> None:
    regex = compile_glob(pattern)
    assert [name for name in yes + no if regex.fullmatch(name)] == yes


def test_a_broken_glob_is_an_error(bench: Bench) -> None:
    assert "unclosed" in bench.refused("glob", pattern="a[b") and "unclosed" in bench.refused("glob", pattern="{a")


def test_list_shows_depth_links_and_ignored_folders(bench: Bench) -> None:
    bench.put("a/b/c/d.txt", "x\n")
    bench.put(".hidden", "x\n")
    bench.put(".gitignore", "out/\n")
    bench.put("out/x.o", "x\n")
    (bench.root / "up").symlink_to("..")
    shallow = bench.ok("list", depth=1)
    assert "a/" in shallow and ".hidden" in shallow and "d.txt" not in shallow and "up -> .." in shallow
    deep = bench.ok("list", depth=9)
    assert "      d.txt" in deep and "out/ (ignored)" in deep and "x.o" not in deep
    bench.refused("list", path="nope")
    bench.refused("list", path=".hidden")


def test_a_huge_folder_is_listed_in_part_with_a_notice(bench: Bench) -> None:
    for n in range(300):
        bench.put(f"many/{n:04}", "")
    text = bench.ok("list", depth=2)
    assert "200 more entries" in text and text.count("\n") < 120


# ------------------------------------------------------------------------------------------------- grep
@pytest.fixture(params=["python", pytest.param("rg", marks=pytest.mark.skipif(RG is None, reason="no ripgrep here"))])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(shutil, "which", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return request.param


def test_grep_filters_ignores_guards_and_limits(bench: Bench, engine: str) -> None:
    bench.put(".gitignore", "build/\n*.log\n!keep.log\n")
    bench.put("build/gen.py", "needle generated\n")
    bench.put("x.log", "needle logged\n")
    bench.put("keep.log", "needle kept\n")
    bench.put("src/a.py", "one\nneedle a\nthree\n")
    bench.put("src/b.txt", "NEEDLE b\n")
    bench.put(".env", "needle=SECRET\n")
    bench.put(".github/x.yml", "needle y\n")
    text = bench.ok("grep", pattern="needle")
    assert "needle a" in text and "needle kept" in text and "needle y" in text and "guarded" in text
    assert not any(word in text for word in ("generated", "logged", "SECRET", "NEEDLE"))
    assert "needle generated" in bench.ok("grep", pattern="needle", path="build")
    assert "NEEDLE b" in bench.ok("grep", pattern="needle", ignore_case=True)
    assert "src/a.py" not in bench.ok("grep", pattern="needle", glob="*.yml")
    assert "  1- one\n  2: needle a\n  3- three" in bench.ok("grep", pattern="needle a", context=1)
    assert "showing 1 of 3" in bench.ok("grep", pattern="needle", limit=1)
    assert "No matches" in bench.ok("grep", pattern="absent")


@pytest.mark.parametrize("pattern", ["(", "[", "*x", "a{2,1}", "(?P<", "\\"])
def test_an_invalid_expression_is_an_error_and_a_literal_is_not(bench: Bench, engine: str, pattern: str) -> None:
    bench.put("f.txt", f"x {pattern} y\n")
    assert "invalid regular expression" in bench.refused("grep", pattern=pattern)
    assert "f.txt" in bench.ok("grep", pattern=pattern, literal=True)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("--files", "a --files b"),
        ("-e", "run -e now"),
        ("->", "x -> y"),
        ("foo {", "if foo {"),
        (r"\bfoo\b", "a foo b"),
        (r"(?<=x)foo", "xfoo"),
        ("[[:digit:]]+z", "12z"),
        (r"\p{L}+!", "über!"),
        (r"^\s+end$", "   end"),
        ("café", "un café"),
    ],
)
def test_patterns_of_every_shape_find_their_line(bench: Bench, engine: str, pattern: str, line: str) -> None:
    bench.put("f.txt", f"plain\r\n{line}\r\nother\r\n")
    bench.put("g.txt", "nothing here\n")
    text = bench.ok("grep", pattern=pattern)
    assert f"  2: {line}\n" in text and "other" not in text and "g.txt" not in text


def test_odd_files_do_not_hide_the_rest(bench: Bench, engine: str) -> None:
    for name in ("a:12:b.txt", "two\nlines.txt", "-e.txt", " sp ace ", "ü.txt"):
        bench.put(name, "x\nneedle\n")
    bench.put("bin.dat", b"needle\x00")
    (bench.root / "dangling").symlink_to("nowhere")
    (bench.root / "self").symlink_to("self")
    (bench.root / "loop").symlink_to(".")
    text = bench.ok("grep", pattern="needle")
    for name in ("a:12:b.txt", "two\\nlines.txt", "-e.txt", " sp ace ", "ü.txt"):
        assert f"{name}\n  2: needle" in text
    assert "bin.dat" not in text and "loop" not in text


def test_a_file_or_folder_that_may_not_be_read_does_not_hide_the_rest(bench: Bench, engine: str) -> None:
    for name in ("a.txt", "locked.txt", "shut/in.txt", "z.txt"):
        bench.put(name, "needle\n")
    (bench.root / "locked.txt").chmod(0)
    (bench.root / "shut").chmod(0)
    is_readable = os.access(bench.root / "locked.txt", os.R_OK)  # root may read everything
    try:
        text = bench.ok("grep", pattern="needle")
        names = bench.ok("glob", pattern="*.txt")
    finally:
        (bench.root / "shut").chmod(0o755)
    assert "a.txt\n  1: needle" in text and "z.txt\n  1: needle" in text
    assert {"a.txt", "locked.txt", "z.txt"} <= set(names.split())
    if not is_readable:
        assert "locked.txt\n  1:" not in text and "in.txt" not in text + names


def test_a_match_in_a_very_long_line_is_clipped_around_it(bench: Bench, engine: str) -> None:
    bench.put("min.js", "a=1;" * 100_000 + "NEEDLE()" + "b=2;" * 100_000)
    text = bench.ok("grep", pattern="NEEDLE")
    assert "NEEDLE()" in text and len(text) < 1500


@pytest.mark.skipif(RG is None, reason="no ripgrep here")
def test_results_are_the_same_with_and_without_ripgrep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(40):
        bench.put(f"d{n % 5}/f{n}.txt", "".join(f"{'alpha' if (n * i) % 7 == 0 else 'beta'} {i}\n" for i in range(30)))
    bench.put("u16.txt", "\ufeffalpha\n".encode("utf-16-le"))
    bench.put("l1.txt", b"alpha caf\xe9\n")
    queries = [
        {"pattern": p, "ignore_case": i, "context": c}
        for p in ("alpha", "al.ha 1", "ALPHA", "a+ 2$")
        for i in (True, False)
        for c in (0, 2)
    ]
    with_rg = [bench.ok("grep", **query) for query in queries]
    monkeypatch.setattr(shutil, "which", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert [bench.ok("grep", **query) for query in queries] == with_rg


@settings(max_examples=80, deadline=None)
@given(st.text("ab(|)[]*+?{}\\.^$x_ 1", max_size=12), st.text("abx_ 1(.", max_size=30))
def test_the_fixed_text_of_an_expression_is_in_every_match(pattern: str, line: str) -> None:
    query = Query(pattern)
    try:
        found = compile_query(query).search(line)
    except ToolError:
        return
    text = fixed_text(query)
    assert found is None or text is None or text in line


def _git(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


IGNORES = st.lists(
    st.sampled_from(
        [
            "*.o",
            "/top",
            "sub/",
            "!keep.o",
            "a/**/z",
            "**/deep",
            "# note",
            "x?",
            "[ab].txt",
            "sub/keep.o",
            "!sub/",
            "\\#odd",
            "dir",
        ]
    ),
    max_size=5,
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
@settings(max_examples=25, deadline=None)
@example(["dir", "!sub/"], [])
@given(IGNORES, IGNORES)
def test_ignore_files_mean_what_git_means(top: list[str], inner: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        names = [
            "m.o",
            "keep.o",
            "top",
            "sub/m.o",
            "sub/keep.o",
            "sub/top",
            "a/b/z",
            "a/z",
            "x1",
            "a.txt",
            "sub/dir/f",
            "dir",
            "#odd",
            "q/deep/f",
        ]
        for name in names:
            bench.put(name, "")
        bench.put(".gitignore", "\n".join(top) + "\n")
        bench.put("sub/.gitignore", "\n".join(inner) + "\n")
        _git(bench.root, "init", "-q")
        listed = _git(bench.root, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
        assert bench.ok("glob", pattern="**").split() == sorted((n for n in listed if n), key=lambda n: n.split("/"))


@pytest.mark.parametrize(
    "rule",
    ["*a" * 40 + "b", "a?" * 20 + "*a*a*a*b", "**/a*/" * 20 + "b", "a" * 900_000, "[a-z]*" * 30 + "!", "*" * 5000],
)
def test_an_ignore_rule_made_to_keep_a_search_busy_is_passed_over(bench: Bench, rule: str) -> None:
    bench.put(".gitignore", f"{rule}\n*.log\n")
    bench.put("a" * 250, "needle\n")
    bench.put("x.log", "needle\n")
    deep = "/".join(["a" * 100] * 8) + "/b.txt"
    bench.put(deep, "needle\n")
    found = bench.ok("grep", pattern="needle")
    assert "x.log" not in found
    assert deep in found or rule == "*" * 5000


def test_a_rule_with_many_stars_still_holds_for_usual_names(bench: Bench) -> None:
    bench.put(".gitignore", "report.[0-9]*.[0-9]*.[0-9]*.[0-9]*.json\n")
    bench.put("report.20240131.101530.4242.0.001.json", "needle\n")
    bench.put("report.txt", "needle\n")
    assert bench.ok("glob", pattern="report*").split() == ["report.txt"]


def test_a_link_is_no_ignore_file(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("*\n")
    bench.put("kept.txt", "needle\n")
    (bench.root / ".gitignore").symlink_to(tmp_path / "elsewhere")
    assert "kept.txt" in bench.ok("glob", pattern="*.txt")
