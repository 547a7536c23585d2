"""Which definitions of a repository matter most: PageRank over files, from the words of one to the definitions of
another, then the rank of a file shared out among the definitions it uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
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


def rank(files: Sequence[FileTags], limit: int | None = None) -> list[Ranked]:
    """The definitions, the most used first (the first `limit` of them); ties in order of file and line."""
    edges = _edges(files)
    ranks, shares = _page_rank(len(files), edges)
    scores: dict[tuple[int, str], float] = defaultdict(float)
    for target, name, share in zip(edges.targets, edges.names, shares, strict=True):
        scores[target, name] += share
    found = (
        (-scores.get((number, tag.name), 0.0) - ranks[number] * 1e-3, file.name, tag.line, at, tag)
        for number, file in enumerate(files)
        for at, tag in enumerate(file.tags)
    )
    first = sorted(found) if limit is None else nsmallest(limit, found)
    return [Ranked(name, tag, -score) for score, name, _, _, tag in first]


@dataclass(slots=True)
class _Edges:
    """One entry per (file that uses a name, other file that defines it)."""

    sources: list[int]
    targets: list[int]
    names: list[str]
    weights: list[float]


def _edges(files: Sequence[FileTags]) -> _Edges:
    definers: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        for tag in file.tags:
            places = definers.setdefault(tag.name, [])
            if not places or places[-1] != number:
                places.append(number)
    telling = {
        n: (places, _name_weight(n) / len(places)) for n, places in definers.items() if len(places) <= MAX_DEFINERS
    }
    edges = _Edges([], [], [], [])
    for number, file in enumerate(files):
        for word, count in file.words.items():
            found = telling.get(word)
            if found is None or number in found[0]:
                continue
            places, weight = found
            edges.sources += [number] * len(places)
            edges.targets += places
            edges.names += [word] * len(places)
            edges.weights += [sqrt(count) * weight] * len(places)
    return edges


def _name_weight(name: str) -> float:
    if name.startswith("_"):
        return PRIVATE_WEIGHT
    return LONG_WEIGHT if len(name) >= LONG_NAME else 1.0


def _page_rank(n_files: int, edges: _Edges) -> tuple[list[float], list[float]]:
    """The rank of each file, which sum to 1, and how much of it flows along each edge."""
    if not n_files:
        return [], []
    start = np.asarray(edges.sources, dtype=np.int64)  # (edges,)
    end = np.asarray(edges.targets, dtype=np.int64)  # (edges,)
    weight = np.asarray(edges.weights, dtype=np.float64)  # (edges,)
    out = np.bincount(start, weights=weight, minlength=n_files)  # (files,)
    share = weight / out[start] if len(start) else weight
    ranks = np.full(n_files, 1.0 / n_files)
    for _ in range(N_ROUNDS):
        lost = float(ranks[out == 0].sum())
        flow = np.bincount(end, weights=ranks[start] * share, minlength=n_files)
        ranks = (1 - DAMPING + DAMPING * lost) / n_files + DAMPING * flow
    return ranks.tolist(), (ranks[start] * share).tolist()
