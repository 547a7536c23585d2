"""Which definitions of a repository matter most: PageRank over files, from the words of one to the definitions of
another, then the rank of a file shared out among the definitions it uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from .tags import Tag

DAMPING = 0.85
N_ROUNDS = 20
MAX_DEFINERS = 12  # a name that more files define says nothing about who is meant
PRIVATE_WEIGHT = 0.1
LONG_WEIGHT = 3.0  # long names are rarely used by chance
LONG_NAME = 8
_NAME = itemgetter(0)


@dataclass(frozen=True, slots=True)
class FileTags:
    """What one file defines and which words it uses."""

    name: str  # relative to the repository, with /
    tags: Sequence[tuple[str, str, int, int]]  # fields of Tag: making Tags of all takes a tenth of the time
    words: str  # what `tags.words` says


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
    scores: dict[int, dict[str, float]] = {}  # file, name
    for target, name, share in zip(edges.targets, edges.names, shares, strict=True):
        of_file = scores.setdefault(target, {})
        of_file[name] = of_file.get(name, 0.0) + share
    by_file = [
        [scores.get(number, {}).get(name, 0.0) + ranks[number] * 1e-3 for name, _, _, _ in file.tags]
        for number, file in enumerate(files)
    ]
    least = _least(np.fromiter(chain.from_iterable(by_file), np.float64), limit)
    found = sorted(
        (-score, file.name, file.tags[at][2], at, file.tags[at])
        for file, of_file in zip(files, by_file, strict=True)
        for at, score in enumerate(of_file)
        if score >= least
    )
    return [Ranked(name, Tag._make(tag), -score) for score, name, _, _, tag in found[:limit]]


def _least(scores: npt.NDArray[np.float64], limit: int | None) -> float:
    """The score of the last one of the first `limit`: most definitions need not be put in order."""
    if limit is None or limit >= len(scores):
        return 0.0
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])


@dataclass(slots=True)
class _Edges:
    """One entry per (file that uses a name, other file that defines it)."""

    sources: list[int]
    targets: list[int]
    names: list[str]
    weights: list[float]


def _edges(files: Sequence[FileTags]) -> _Edges:
    definers: dict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(files):
        for name in set(map(_NAME, file.tags)):
            definers[name].append(number)
    telling = {name: places for name, places in definers.items() if name and len(places) <= MAX_DEFINERS}
    edges = _Edges([], [], [], [])
    for number, file in enumerate(files):
        words, _, counts = file.words.partition("\n")
        known = [(at, word) for at, word in enumerate(words.split(" ")) if word in telling]  # hot: 500,000 words
        how_often = counts.split(" ") if known else []
        for at, word in known:
            places = telling[word]
            if number not in places:
                _add(edges, number, places, word, sqrt(int(how_often[at])) * _name_weight(word) / len(places))
    return edges


def _add(edges: _Edges, source: int, targets: list[int], name: str, weight: float) -> None:
    for target in targets:
        edges.sources.append(source)
        edges.targets.append(target)
        edges.names.append(name)
        edges.weights.append(weight)


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
