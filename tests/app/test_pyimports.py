"""Imports that a small model forgot are found by Python's own scopes and put at the top."""

from __future__ import annotations

import pytest

from pointcode_local.pyimports import offered, unbound_modules, unbound_names, with_imports


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import os\nprint(os.sep, sys.argv)\n", ["sys"]),
        ("def f(a):\n    return a + foo(bar)\n", ["foo", "bar"]),
        ("class A:\n    x: int = y\n\n    def g(self):\n        return __class__\n", ["y"]),
        ("try:\n    pass\nexcept ValueError as e:\n    print(e, __name__)\n", []),
        ("def f():\n    global x\n    x = 1\n\n\nprint(x)\n", []),
        ("def f():\n    return [z for z in range(3)]\n", []),
        ("from os import *\nprint(sep)\n", []),
        ("exec('x = 1')\nprint(x)\n", []),
        ("print(x", []),
        ("def f():\n    def g():\n        return h\n    h = 1\n    return g\n", []),
    ],
)
def test_names_that_nothing_binds_are_found(code: str, names: list[str]) -> None:
    assert unbound_names(code) == names


def test_a_module_is_missing_only_where_its_names_are_used_and_nothing_binds_it() -> None:
    assert unbound_modules("def f(json):\n    return json.x + os.sep\n") == ["os"]
    assert unbound_modules("print(os, other.sep)\n") == []
    assert unbound_modules("from x import *\nos.sep\n") == []


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("print(sys.argv)\n", "import sys\n\nprint(sys.argv)\n"),
        ('"""A."""\n\nprint(sys.argv)\n', '"""A."""\n\nimport sys\n\nprint(sys.argv)\n'),
        ('"""A."""\nprint(sys.argv)\n', '"""A."""\n\nimport sys\n\nprint(sys.argv)\n'),
        ("#!/usr/bin/env python3\nprint(sys.argv)\n", "#!/usr/bin/env python3\n\nimport sys\n\nprint(sys.argv)\n"),
        ('"""A."""; sys.exit()', '"""A."""; sys.exit()\n\nimport sys\n'),
        ("import os\n\n\ndef t():\n    f(1)\n", "import os\nfrom m import f\n\n\ndef t():\n    f(1)\n"),
        ("f(g(time.time()))\n", "import time\nfrom m import f, g\n\nf(g(time.time()))\n"),
        ("print(time)\n", "print(time)\n"),  # not used as a module
        ("print(other)\n", "print(other)\n"),
        ("print(sys.argv\n", "print(sys.argv\n"),
    ],
)
def test_what_is_missing_is_imported(text: str, whole: str) -> None:
    assert with_imports(text, "", {"f": "m", "g": "m"}) == whole
    assert with_imports(whole, "", {"f": "m", "g": "m"}) == whole


def test_what_the_file_lacked_before_is_left_alone() -> None:
    assert with_imports("print(sys.path, 1)\n", "print(sys.path)\n", {}) == "print(sys.path, 1)\n"


def test_a_file_offers_what_stands_at_its_top_level() -> None:
    text = "def f():\n    def inner():\n        pass\n\n\nclass A:\n    def m(self):\n        pass\n"
    assert offered("src/shop/prices.py", text) == {"f": "shop.prices", "A": "shop.prices"}
    assert offered("shop/__init__.py", text) == {"f": "shop", "A": "shop"}
    assert offered("my-dir/a.py", text) == offered("a.js", text) == offered("a.py", "def (") == {}
