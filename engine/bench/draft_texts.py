"""Histories for measuring drafts with weights that are random: such a model cannot choose to repeat its prompt.

So it is arranged. A text is decoded once; then it is decoded again, from the same pages, with a history in which drafts
find the text, part of it, or none of it. They find what they would find if the model repeated its prompt; the keys in
the pages are not those of the history, which changes no number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EDIT_EVERY = 16
SHARE_OF_PLACES, RIGHT = 0.3, 0.3  # of the free text
_LEAD = 3  # tokens that must match before a draft is tried
_WRONG_TAIL = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """`kind` names a way to make the history."""

    kind: str
    meaning: str


WORKLOADS = (
    Workload("copy", "the whole text stands in the history"),
    Workload("edit", f"it stands there with one token in {EDIT_EVERY} changed: a file written again"),
    Workload(
        "free",
        f"after {SHARE_OF_PLACES:.0%} of the tokens a draft is found, and {RIGHT:.0%} of those begin right: free text",
    ),
    Workload("none", "nothing of it stands there"),
)


def history_for(kind: str, text: Sequence[int], last: int, n: int, vocab: int, seed: int) -> NDArray[np.int32]:
    """(n,) tokens that end with `last`, after which `text` will come; ValueError when they do not fit."""
    dice = np.random.default_rng(seed)
    lead = [*_tokens(dice, _LEAD - 1, vocab), last]
    match kind:
        case "copy":
            found = [*lead, *text]
        case "edit":
            found = [*lead, *text]
            for at in range(_LEAD + EDIT_EVERY - 1, len(found), EDIT_EVERY):
                found[at] = (found[at] + 1) % vocab
        case "free":
            found = _beginnings([*lead, *text], dice, vocab)
        case "none":
            found = []
        case _:
            raise ValueError(f"unknown workload {kind!r}")
    n_free = n - len(found) - _LEAD
    if n_free < 0:
        raise ValueError(f"a history of {n} tokens is too short for {len(text)} tokens of text")
    before = n_free // 2
    return np.array([*_tokens(dice, before, vocab), *found, *_tokens(dice, n_free - before, vocab), *lead], np.int32)


def _beginnings(text: Sequence[int], dice: np.random.Generator, vocab: int) -> list[int]:
    """Of some places the tokens before it and the one after, which is often another."""
    found: list[int] = []
    for at in range(_LEAD, len(text)):
        if dice.random() >= SHARE_OF_PLACES:
            continue
        right = dice.random() < RIGHT
        found += [*text[at - _LEAD : at], text[at] if right else (text[at] + 1) % vocab]
        found += _tokens(dice, _WRONG_TAIL, vocab)
    return found


def _tokens(dice: np.random.Generator, n: int, vocab: int) -> list[int]:
    return dice.integers(0, vocab, n).tolist()
