"""Stop strings are found and hidden however the text is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.engine.stops import StopMatcher


def feed_all(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.feed(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.stopped


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_the_result_does_not_depend_on_the_cuts(text: str, stops: list[str], cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    assert feed_all(stops, pieces) == feed_all(stops, list(text))


@given(text=st.text("ab", max_size=30), stop=st.text("ab", min_size=1, max_size=4))
def test_text_before_the_stop_is_shown_and_nothing_of_the_stop(text: str, stop: str) -> None:
    before, found, _ = text.partition(stop)
    assert feed_all([stop], list(text)) == (before, bool(found))


def test_text_that_cannot_begin_a_stop_is_shown_at_once() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.feed("hello") == "hello"
    assert matcher.feed("\nUs") == ""
    assert matcher.feed("ing it") == "\nUsing it"
