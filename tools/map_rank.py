"""Which definitions of a repository matter most: PageRank over files, from the words of one to the definitions of
another, then the rank of a file shared out among the definitions it uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from .tags import Tag

DAMPING = 0.85
N_ROUNDS = 20
MAX_DEFINERS = 12  # a name that more files define says nothing about who is meant
PRIVATE_WEIGHT = 0.1
LONG_WEIGHT = 3.0  # long names are rarely used by chance
LONG_NAME = 8


@dataclass(frozen=True, slots=True)
class FileTags:
    """What one file defines and which words it uses, with how often."""

    name: str  # relative to the repository, with /
    tags: tuple[Tag, ...]
    words: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A definition with its place in the order (higher is more important)."""

    file: str
    tag: Tag
    score: float


def rank(files: Sequence[FileTags]) -> list[Ranked]:
    """All definitions, the most used first; ties in order of file and line."""
    definers: dict[str, set[int]] = defaultdict(set)
    for number, file in enumerate(files):
        for tag in file.tags:
            definers[tag.name].add(number)
    sources, targets, names, weights = _edges(files, definers)
    ranks, shares = _page_rank(len(files), sources, targets, weights)
    scores: dict[tuple[int, str], float] = defaultdict(float)
    for target, name, share in zip(targets, names, shares, strict=True):
        scores[target, name] += share
    found = [
        Ranked(file.name, tag, scores.get((number, tag.name), 0.0) + ranks[number] * 1e-3)
        for number, file in enumerate(files)
        for tag in file.tags
    ]
    return sorted(found, key=lambda one: (-one.score, one.file, one.tag.line))


def _edges(
    files: Sequence[FileTags], definers: dict[str, set[int]]
) -> tuple[list[int], list[int], list[str], list[float]]:
    """One edge per (file that uses a name, other file that defines it)."""
    sources: list[int] = []
    targets: list[int] = []
    names: list[str] = []
    weights: list[float] = []
    for number, file in enumerate(files):
        for word in sorted(definers.keys() & file.words.keys()):
            places = definers[word]
            if len(places) > MAX_DEFINERS or number in places:
                continue
            weight = sqrt(file.words[word]) * _name_weight(word) / len(places)
            for place in sorted(places):
                sources.append(number)
                targets.append(place)
                names.append(word)
                weights.append(weight)
    return sources, targets, names, weights


def _name_weight(name: str) -> float:
    if name.startswith("_"):
        return PRIVATE_WEIGHT
    return LONG_WEIGHT if len(name) >= LONG_NAME else 1.0


def _page_rank(
    n_files: int, sources: list[int], targets: list[int], weights: list[float]
) -> tuple[list[float], list[float]]:
    """The rank of each file, which sum to 1, and how much of it flows along each edge."""
    if not n_files:
        return [], []
    start = np.asarray(sources, dtype=np.int64)  # (edges,)
    end = np.asarray(targets, dtype=np.int64)  # (edges,)
    weight = np.asarray(weights, dtype=np.float64)  # (edges,)
    out = np.bincount(start, weights=weight, minlength=n_files)  # (files,)
    share = weight / out[start] if len(sources) else weight
    ranks = np.full(n_files, 1.0 / n_files)
    for _ in range(N_ROUNDS):
        lost = float(ranks[out == 0].sum())
        flow = np.bincount(end, weights=ranks[start] * share, minlength=n_files)
        ranks = (1 - DAMPING + DAMPING * lost) / n_files + DAMPING * flow
    return ranks.tolist(), (ranks[start] * share).tolist()
