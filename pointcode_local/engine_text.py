"""The engine in words: one labelled line for each figure, for the full screen and the line mode alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pointcode_local.frontend import EngineRequest, EngineView, PagePool
from pointcode_local.render import one_line, plural, short_count

_BARS = "▁▂▃▄▅▆▇█"
_STATES = {"waiting": "waits", "reading": "reads its prompt", "writing": "writes"}


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One figure: its name, its value, and what it means to somebody who has never seen it."""

    name: str
    text: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two looks at the engine; 0 where nothing did."""

    step_s: float = 0.0  # one decode step
    tokens_per_s: float = 0.0  # of one request, by the clock
    prefill_tokens_per_s: float = 0.0


def rates(before: EngineView | None, now: EngineView, seconds: float) -> Rates:
    """The rates between two views that lie `seconds` apart; those since the start where `before` is None."""
    n_steps = now.steps - (before.steps if before else 0)
    busy_s = now.busy_s - (before.busy_s if before else 0.0)
    read_s = now.prefill_s - (before.prefill_s if before else 0.0)
    n_accepted = now.accepted_tokens - (before.accepted_tokens if before else 0)
    n_read = now.prefill_tokens - (before.prefill_tokens if before else 0)
    return Rates(
        step_s=busy_s / n_steps if n_steps > 0 else 0.0,
        tokens_per_s=(n_steps + n_accepted) / seconds if seconds > 0 else 0.0,
        prefill_tokens_per_s=n_read / read_s if read_s > 0 else 0.0,
    )


def sparkline(values: list[float]) -> str:
    """One block a value, the largest one full."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] for value in values)


def acceptance(view: EngineView) -> str:
    """How many of the guessed tokens were right, in percent; "" where the engine does not guess."""
    return f"{100 * view.accepted_tokens // view.drafted_tokens}%" if view.drafted_tokens else ""


def engine_lines(view: EngineView, now: Rates, since_start: Rates, speeds: list[float]) -> Iterator[EngineLine]:
    """Every figure of the engine; `speeds` are the last tokens per second, oldest first."""
    where = f"{view.backend} backend" + (f", {plural(view.n_threads, 'thread')}" if view.backend == "cpu" else "")
    yield EngineLine("model", f"{one_line(view.model)}, {where}")
    step_s = now.step_s or since_start.step_s
    is_writing = any(request.state == "writing" for request in view.requests)
    speed = f"{now.tokens_per_s:.1f} tokens/s" if now.step_s or is_writing else "idle"
    yield EngineLine("speed", f"{speed}  {sparkline(speeds)}".rstrip(), "how fast each request is written")
    took = f"{step_s * 1000:.1f} ms" if step_s else "none yet"
    yield EngineLine("step", f"{took}, {view.steps:,} so far", "one pass through the model, for a token or more")
    yield EngineLine("memory", *_memory(view, step_s))
    read = now.prefill_tokens_per_s or since_start.prefill_tokens_per_s
    speed = f"{read:,.0f} tokens/s, " if read else ""
    yield EngineLine(
        "prompt", f"{speed}{short_count(view.prefill_tokens)} tokens read", "reading what you and tools say"
    )
    meaning = f"a page keeps {view.page_tokens} tokens; kept pages need not be read again"
    for n, pool in enumerate(view.pools):
        yield EngineLine("KV cache", _pool(pool, shown_name=len(view.pools) > 1), "" if n else meaning)
    rate = acceptance(view)
    guesses = f"{rate} of {view.drafted_tokens:,} guessed tokens were right" if rate else "nothing guessed yet"
    yield EngineLine("guessing", guesses, "speculation: tokens tried ahead in one step")
    yield EngineLine("batch", _batch(view), "requests that are written together")


def _memory(view: EngineView, step_s: float) -> tuple[str, str]:
    if not view.step_bytes or not step_s:
        return "not known yet", "what a step reads, against what the memory can give"
    speed = view.step_bytes / step_s
    text = f"{view.step_bytes / 1e9:.2f} GB a step, {_per_second(speed)}"
    if not view.ceiling_bytes_per_s:
        return text, "what a step reads"
    share = 100 * speed / view.ceiling_bytes_per_s
    return f"{text} = {share:.0f}% of speed of light", f"the memory gives {_per_second(view.ceiling_bytes_per_s)}"


def _per_second(speed: float) -> str:
    return f"{speed / 1e12:.2f} TB/s" if speed >= 1e12 else f"{speed / 1e9:.1f} GB/s"


def _pool(pool: PagePool, *, shown_name: bool) -> str:
    free = pool.total - pool.used - pool.cached
    name = f"{pool.name}: " if shown_name else ""
    return f"{name}{pool.used:,} pages in use, {pool.cached:,} kept, {free:,} free"


def _batch(view: EngineView) -> str:
    n_rows = sum(request.state == "writing" for request in view.requests)
    n_waiting = len(view.requests) - n_rows
    waiting = f", {n_waiting} not yet in it" if n_waiting else ""
    return f"{n_rows} of {view.max_rows} places taken{waiting}, {view.n_finished:,} requests done"


def request_text(request: EngineRequest) -> str:
    """One request of the batch."""
    text = f"#{request.id} {_STATES[request.state]}: "
    if request.state == "writing":
        cached = f" ({short_count(request.cached_tokens)} from cache)" if request.cached_tokens else ""
        return f"{text}prompt {short_count(request.prompt_tokens)}{cached}, {plural(request.new_tokens, 'new token')}"
    return f"{text}{short_count(request.done_tokens)} of {short_count(request.prompt_tokens)} tokens"
