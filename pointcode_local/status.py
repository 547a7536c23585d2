"""`/status`: what is in force in this session and how full it is; one text for every front end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from pointcode_local.complete import MODE_MEANING
from pointcode_local.events import AgentEvent, CompactionFinished, UsageChanged
from pointcode_local.frontend import Host, HostInfo
from pointcode_local.render import one_line, plural, short_count, short_seconds

_OWN_LINES = ("model", "permission_mode")  # settings that have a line of their own, as they now are
_NO_SANDBOX = "none: commands run with your rights"
_LABEL_CELLS = 10


async def status_text(host: Host) -> str:
    """One labelled line a fact, the settings that are not the defaults last."""
    usage, context_tokens = _last_usage(await asyncio.to_thread(host.history))
    lines = [*_lines(host.info, usage, context_tokens), *_settings(host)]
    return "\n".join(f"{label:<{_LABEL_CELLS}}{one_line(text)}" for label, text in lines)


def _last_usage(events: Iterable[AgentEvent]) -> tuple[UsageChanged | None, int]:
    """The last call's figures, and the tokens that the conversation takes since then."""
    usage: UsageChanged | None = None
    context_tokens = 0
    for event in events:
        match event:
            case UsageChanged():
                usage, context_tokens = event, event.context_tokens
            case CompactionFinished(context_tokens=tokens):
                context_tokens = tokens
            case _:
                pass
    return usage, context_tokens


def _lines(info: HostInfo, usage: UsageChanged | None, context_tokens: int) -> Iterator[tuple[str, str]]:
    yield "model", f"{info.model} on {info.backend}"
    yield "context", _context(context_tokens, info.context_limit or (usage.context_limit if usage else 0))
    yield "speed", _speed(usage)
    yield "mode", f"{info.mode}: {MODE_MEANING.get(info.mode, '')}"
    for n, rule in enumerate(info.session_rules):
        yield "" if n else "allowed", f"{rule} (until this session is left)"
    yield "sandbox", _NO_SANDBOX if info.sandbox == "none" else info.sandbox or "not known yet"
    if info.n_jobs:
        yield "jobs", f"{plural(info.n_jobs, 'background command')} (/jobs)"
    yield "session", info.session_id
    yield "folder", str(info.cwd)
    yield "version", f"pointcode {info.version}"


def _context(tokens: int, limit: int) -> str:
    if not limit:
        return f"{tokens:,} tokens"
    return f"{tokens:,} of {limit:,} tokens, {100 * tokens / limit:.0f}%"


def _speed(usage: UsageChanged | None) -> str:
    if usage is None:
        return "nothing was written yet"
    speed = f"{usage.tokens_per_second:.0f} tok/s, " if usage.tokens_per_second else ""  # one token has no speed
    cached = 100 * usage.cached_tokens // max(1, usage.prompt_tokens)
    return (
        f"{speed}first token after {short_seconds(usage.time_to_first_token_s)}, "
        f"{cached}% of {short_count(usage.prompt_tokens)} prompt tokens from the cache (last reply)"
    )


def _settings(host: Host) -> Iterator[tuple[str, str]]:
    """`key = value (where from)` of each that was set, what was set but does not count, or that there is none."""
    label = "settings"
    for name, value, origin in host.settings():
        if name not in _OWN_LINES:
            yield label, f"{name} = {value} ({origin})"
            label = ""
    if label:
        yield label, "all are the defaults"
