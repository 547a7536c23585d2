"""Counters of the server in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from ..engine import EngineStats

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REASONS = ("stop", "length", "tool_calls", "error", "refused", "unfinished")
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """The samples, cumulative as Prometheus wants them."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What the server counts itself; belongs to the event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # (route, status)
        self.tokens: Counter[str] = Counter()  # kind
        self.replies: Counter[str] = Counter()  # how they ended
        self.n_live = 0
        self.n_cut = 0  # connections cut because their client did not read
        self.n_gone = 0  # clients that left before the answer was complete
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.between_tokens_s = Histogram(_BETWEEN_TOKENS_S)

    def text(self, stats: EngineStats) -> str:
        """The page at /metrics."""
        return "\n".join((*self._own(), *_of_engine(stats), ""))

    def _own(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Answered requests.")
        for (route, status), count in sorted(self.requests.items()):
            yield f'pointcode_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("tokens_total", "counter", "Tokens of finished requests.")
        for kind in ("prompt", "cached", "generated"):
            yield f'pointcode_tokens_total{{kind="{kind}"}} {self.tokens[kind]}'
        yield from _head(
            "replies_total", "counter", "Replies by how they ended; those nobody waited for are unfinished."
        )
        for reason in REASONS:
            yield f'pointcode_replies_total{{reason="{reason}"}} {self.replies[reason]}'
        yield from _value("live_requests", "gauge", "Requests that are being answered.", self.n_live)
        yield from _value("slow_clients_cut_total", "counter", "Connections cut because nobody read.", self.n_cut)
        yield from _value("clients_gone_total", "counter", "Clients that left before the end.", self.n_gone)
        for name, histogram, text in (
            ("time_to_first_token_seconds", self.first_token_s, "From request to first token."),
            ("between_tokens_seconds", self.between_tokens_s, "Between the pieces of a stream."),
        ):
            yield from _head(name, "histogram", text)
            yield from histogram.lines(f"pointcode_{name}")


def _of_engine(stats: EngineStats) -> Iterator[str]:
    yield from _value("steps_total", "counter", "Decode steps.", stats.steps)
    yield from _value("busy_seconds_total", "counter", "Time inside decode steps.", round(stats.busy_s, 6))
    yield from _value("rows", "gauge", "Sequences in the batch.", stats.n_rows)
    yield from _value("waiting", "gauge", "Requests that wait for a place or for their prompt.", stats.n_waiting)
    yield from _value("preemptions_total", "counter", "Rows taken out of the batch for others.", stats.n_preempted)
    yield from _value("backend_restarts_total", "counter", "Times the backend was rebuilt.", stats.n_restarts)
    yield from _value("prefill_tokens_total", "counter", "Prompt tokens computed.", stats.prefill_tokens)
    yield from _value("prefill_seconds_total", "counter", "Time computing prompts.", round(stats.prefill_s, 6))
    yield from _head("kv_pages", "gauge", "Pages of the KV cache.")
    for group, pool in enumerate(stats.pages):
        for state in ("free", "cached", "used"):
            yield f'pointcode_kv_pages{{group="{group}",state="{state}"}} {getattr(pool, state)}'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP pointcode_{name} {text}"
    yield f"# TYPE pointcode_{name} {kind}"


def _value(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"pointcode_{name} {value}"
