"""What `bench serve` sends: requests with their arrival times, the same for every server.

`shared`: questions that arrive at random moments behind one system prompt. `agent`: conversations of a coding agent,
recorded from this program, whose turns follow each other; each turn repeats the conversation so far.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_AGENT_FILE = Path(__file__).with_name("agent_trace.json")
_AGENT_TOKENS = 64  # the longest answer of a turn
_RULES = (
    "You answer questions about a program. Be exact and brief. Name the file and the line when you know them. "
    "Say when you do not know. Never invent a function that is not there. Prefer the standard library. "
)
_QUESTIONS = (
    "What does the function parse do?",
    "Why is the test of the cache slow?",
    "Where is the port set?",
    "How do I add a command?",
    "Which module writes the log?",
    "What happens when the file is missing?",
    "Who calls close?",
    "Can two readers share the lock?",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the messages, and how many tokens the answer may have."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other; the first is sent at `start_s`, each other one when the answer before is whole."""

    start_s: float
    turns: tuple[Turn, ...]


def shared_prefix(
    n_requests: int, rate_per_s: float, seed: int, n_rules: int = 12, max_tokens: int = 48
) -> list[Session]:
    """`n_requests` with exponential gaps between arrivals."""
    dice = random.Random(seed)
    system = {"role": "system", "content": _RULES * n_rules}
    sessions: list[Session] = []
    at_s = 0.0
    for i in range(n_requests):
        question = {"role": "user", "content": f"Question {i}: {dice.choice(_QUESTIONS)}"}
        sessions.append(Session(at_s, (Turn((system, question), max_tokens),)))
        at_s += dice.expovariate(rate_per_s)
    return sessions


def agent(n_sessions: int, gap_s: float, n_turns: int = 0) -> list[Session]:
    """`n_sessions` copies of the recorded conversation, each about a file of its own, that begin `gap_s` apart.

    `n_turns`: only the first turns of each; 0: all.
    """
    recorded: dict[str, Any] = json.loads(_AGENT_FILE.read_text(encoding="utf-8"))
    sessions: list[Session] = []
    for i in range(n_sessions):
        text = json.dumps(recorded["messages"]).replace("app.py", f"app{i}.py")
        messages: list[dict[str, Any]] = json.loads(text)
        tools = tuple(recorded["tools"])
        turns = tuple(Turn(tuple(messages[:n]), _AGENT_TOKENS, tools) for n in recorded["turns"][: n_turns or None])
        sessions.append(Session(i * gap_s, turns))
    return sessions
