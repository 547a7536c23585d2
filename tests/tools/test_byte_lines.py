"""Lines do not depend on how their bytes came, and one without an end does not fill the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.tools.byte_lines import TOO_LONG, ByteLines


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"\xff", b"\n")), max_size=12))
def test_lines_do_not_depend_on_how_they_were_cut(pieces: list[bytes]) -> None:
    lines = ByteLines()
    found = [line for piece in pieces for line in lines.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert found == whole and lines.n_bytes == len(rest)
    assert lines.rest() == rest and lines.n_bytes == 0


@pytest.mark.parametrize("end", [b"y" * 100 + b"z\n{}\n", b"\n{}\n"])
def test_of_a_line_that_is_too_long_nothing_is_held(end: bytes) -> None:
    lines = ByteLines(10)
    assert lines.feed(b"0123456789\n" + b"x" * 11) == [b"0123456789"]
    assert lines._parts == []
    assert lines.feed(end) == [TOO_LONG, b"{}"]
    lines.feed(b"x" * 11)
    assert lines.rest() == TOO_LONG and lines.rest() == b""
