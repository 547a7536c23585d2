"""Outlines and whole-symbol edits in every language we parse."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools.filetext import decode
from pointcode_local.tools.languages import LANGUAGES
from pointcode_local.tools.spans import symbols_of
from pointcode_local.tools.syntax import faults, new_faults

from .tool_kit import Bench

SOURCES = {
    "a.py": (
        "import os\n\n@deco\nclass A:\n    @property\n    def m(self):\n        return 1\n\nasync def f():\n    pass\n",
        ["A", "A.m", "f"],
    ),
    "a.js": (
        "export function f() {}\nexport default class A { m() {} static s() {} }\nconst g = () => 1;\n"
        "function* h() {}\n",
        ["f", "A", "A.m", "A.s", "g", "h"],
    ),
    "a.ts": (
        "interface I { x: number }\nexport abstract class B<T> { m(): void {} }\ntype T1 = string;\n"
        "enum E { A }\nexport const k = async () => 2;\n",
        ["I", "B", "B.m", "T1", "E", "k"],
    ),
    "a.tsx": ("export const C = () => <div/>;\nfunction D() { return <p/>; }\n", ["C", "D"]),
    "a.rs": (
        "struct S { x: i32 }\nimpl S { fn new() -> S { S { x: 1 } } }\n"
        "impl Clone for S { fn clone(&self) -> S { S { x: 1 } } }\ntrait T { fn a(&self); }\n"
        "mod m { pub fn z() {} }\n",
        ["S", "S", "S.new", "Clone for S", "Clone for S.clone", "T", "T.a", "m", "m.z"],
    ),
    "a.go": (
        "package p\n\ntype S struct{ x int }\n\nfunc (s *S) M() int { return 1 }\n\nfunc F() {}\n",
        ["S", "S.M", "F"],
    ),
    "a.c": (
        "struct s { int x; };\nstatic int *f(int a) { return 0; }\ntypedef int foo;\nenum e { A };\n",
        ["s", "f", "foo", "e"],
    ),
    "a.cpp": (
        "namespace n { class A { public: int m() { return 1; } }; template <class T> T f(T x) { return x; } }\n"
        "int n::A::q() { return 2; }\n",
        ["n", "n.A", "n.A.m", "n.f", "n::A::q"],
    ),
    "A.java": (
        "package p; public class A { A() {} int m() { return 1; } interface I {} enum E { X } record R(int x) {} }\n",
        ["A", "A.A", "A.m", "A.I", "A.E", "A.R"],
    ),
    "a.sh": ("f() { echo; }\nfunction g { :; }\n", ["f", "g"]),
    "a.json": ('{"a": {"b": 1}, "c": 2}\n', ["a", "a.b", "c"]),
    "a.css": (".a, .b { color: red }\n@media print { .c { x: y } }\n", [".a, .b", ".c"]),
    "a.html": ('<html><body><div id="x"><p>t</p></div></body></html>\n', ["body", "body.div#x"]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_outline_names_the_symbols_with_their_lines(bench: Bench, name: str) -> None:
    source, names = SOURCES[name]
    file = decode(source.encode())
    language = LANGUAGES["." + name.split(".")[1]]
    found = symbols_of(file, language)
    assert [symbol.name for symbol in found] == names
    for symbol in found:
        assert (
            file.line_of(symbol.start) == symbol.first_line
            and re.split(r"[.#]", symbol.label)[-1].strip() in file.text[symbol.start : symbol.end]
        )
    assert list(faults(source, language)) == []
    bench.put(name, source)
    text = bench.ok("outline", path=name)
    assert text.count("\n") == len(names) - 1


def test_kinds_of_files_without_a_grammar_are_told(bench: Bench) -> None:
    bench.put("a.txt", "x\n")
    bench.put("e.py", "x = 1\n")
    assert "no outline" in bench.refused("outline", path="a.txt")
    assert "no symbols" in bench.ok("outline", path="e.py")


def test_a_whole_symbol_is_replaced_with_decorators_indentation_and_endings(bench: Bench) -> None:
    bench.put(
        "m.py",
        "# é\r\nclass A:\r\n    @property\r\n    def m(self):\r\n        return 1\r\n\r\n    def n(self): pass\r\n",
    )
    bench.ok("replace_symbol", path="m.py", symbol="A.m", content="def m(self):\n    if 1:\n        return 2\n")
    want = (
        "# é\r\nclass A:\r\n    def m(self):\r\n        if 1:\r\n            return 2\r\n\r\n    def n(self): pass\r\n"
    )
    assert bench.get("m.py") == want.encode()
    bench.ok("replace_symbol", path="m.py", symbol="n()", content="    def n(self):\n        return 3")
    assert bench.get("m.py").endswith(b"\r\n\r\n    def n(self):\r\n        return 3\r\n")


def test_unknown_and_ambiguous_symbols_placeholders_and_new_faults_are_told(bench: Bench) -> None:
    bench.put("m.py", "class A:\n    def m(self): pass\nclass B:\n    def m(self): pass\ndef f():\n    return 1\n")
    assert "A.m" in bench.refused("replace_symbol", path="m.py", symbol="x", content="y")
    assert "not unique" in bench.refused("replace_symbol", path="m.py", symbol="m", content="def m(self): 1")
    assert "placeholder" in bench.refused(
        "replace_symbol", path="m.py", symbol="f", content="def f():\n    # ... existing code ..."
    )
    assert "already" in bench.refused("replace_symbol", path="m.py", symbol="f", content="def f():\n    return 1\n")
    assert "line 5" in bench.ok("replace_symbol", path="m.py", symbol="f", content="def f(:\n    return 2")


@pytest.mark.parametrize("name", SOURCES)
def test_a_broken_file_is_reported_and_a_mended_one_is_not(name: str) -> None:
    if name == "a.html":
        return
    source = SOURCES[name][0]
    broken = source.rstrip("\n") + "\n)]} ((\n"
    assert new_faults(PurePath(name), source, broken)
    assert new_faults(PurePath(name), broken, source) == []
    assert new_faults(PurePath(name), broken, "\n" + broken) == []


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SOURCES)), st.text("(){}[]<>:;é\n\t\"'ab 1", max_size=20), st.integers(0, 200))
def test_no_text_makes_the_outline_fail(name: str, junk: str, at: int) -> None:
    source = SOURCES[name][0]
    file = decode((source[:at] + junk + source[at:]).encode())
    for symbol in symbols_of(file, LANGUAGES["." + name.split(".")[1]]):
        assert 0 <= symbol.start <= symbol.end <= len(file.text) and 1 <= symbol.first_line <= symbol.last_line
