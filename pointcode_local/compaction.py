"""Shortens a conversation that is about to outgrow the context.

The first message (goal, project rules) and the recent ones stay; the middle is replaced by the model's own notes and
the person's words in it. A plain list of the calls made stands in for them where the model writes none, and with small
models, which write down what nobody said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pointcode_local.conversation import Conversation
from pointcode_local.engine.errors import EngineError
from pointcode_local.engine.types import AnswerText, ChatModel, ChatRequest, Message, SamplingParams, ToolSpec
from pointcode_local.events import CompactionFinished, ResultsCut
from pointcode_local.window import Window

NOTES_HEAD = "[notes on the work so far; they stand for earlier messages]"
WORDS_HEAD = "[what the person said in those messages]"
PLAN_HEAD = "[the plan, as last stated with todo]"
REQUEST = (
    "Write a summary of the work so far for yourself: the goal and the person's wishes, decisions, files read and "
    "changed (with the facts that matter), commands and their outcome, errors that are still open, and the next step. "
    "At most 400 words. Plain text only; call no tool."
)
TRIES = 2
MIN_RESULT_CHARS = 120  # what is left of a result at least,
NOTE_CHARS = 120  # beside the note on what is not


async def compact(
    model: ChatModel,
    conversation: Conversation,
    tools: Sequence[ToolSpec],
    window: Window,
    attempt: int,
    *,
    hard: bool = False,
    also: str = "",
) -> CompactionFinished | None:
    """The event that shortens the conversation; None when there is nothing to drop. `attempt` 1 drops more than 0;
    `hard`: of the recent part only the last answer stays, however much room there is. `also` goes with the notes: what
    must not depend on whether the model thinks of it."""
    messages = conversation.messages[1:]
    n_head = _head(messages, window, attempt)
    budget = 0 if hard else window.limit // (10 if attempt else 4)
    first_kept = _first_kept(messages, n_head, window, budget, must_keep=not attempt)
    dropped = messages[n_head:first_kept]
    if not dropped:
        return None
    before = window.count(conversation.messages)
    n_notes = min(1024, window.reserve // 2, max(128, (before - window.count(conversation.messages[:1])) // 2))
    notes = "" if model.is_small else await _notes(model, conversation.messages, tools, window, n_notes)
    notes = window.cut(notes or _plain_notes(dropped), window.limit // 8)
    facts = "\n\n".join(part for part in (_plan(conversation), also) if part)
    summary = f"{NOTES_HEAD}\n{notes}" + (f"\n\n{window.cut(facts, window.limit // 16)}" if facts else "")
    if words := _words(dropped, conversation, window):
        summary += f"\n\n{WORDS_HEAD}\n{words}"
    after = (conversation.messages[0], *messages[:n_head], Message("user", summary), *messages[first_kept:])
    n_after = window.count(after)
    return CompactionFinished(n_after, summary, n_head, first_kept) if n_after < before else None


def cut_results(conversation: Conversation, window: Window) -> ResultsCut | None:
    """The event that cuts the last results, the longest first, so that there is room to work; None where none is there
    or they need not be cut. The model has not seen them: what it has read stays as it is."""
    sizes = [len(conversation.history[at].content) for at in conversation.fresh_results()]
    n_over = window.working_room - window.room(conversation.messages)
    if not sizes or n_over <= 0:
        return None
    n_tokens = sum(window.count_text(conversation.history[at].content) for at in conversation.fresh_results())
    left = max(0, n_tokens - n_over) / max(1, n_tokens) * sum(sizes) * 0.95
    return ResultsCut(max(MIN_RESULT_CHARS, _even(sizes, int(left)) - NOTE_CHARS))


def _even(sizes: Sequence[int], total: int) -> int:
    """The length to which all must be cut so that together they have `total`: those that are shorter give the others
    what they leave."""
    for n_longer, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * n_longer > total:
            return total // n_longer
        total -= size
    return max(sizes)


def _head(messages: Sequence[Message], window: Window, attempt: int) -> int:
    """How many of the first messages stay: the first user message, unless a second attempt finds it too large."""
    if not messages or messages[0].role != "user":
        return 0
    return 0 if attempt and window.count_text(messages[0].content) > window.limit // 4 else 1


def _first_kept(messages: Sequence[Message], n_head: int, window: Window, budget: int, *, must_keep: bool) -> int:
    """Where the recent part begins: as many messages as fit `budget` tokens, never inside a call.

    `must_keep`: the last exchange stays in any case: the model may not have seen its results yet.
    """
    first = len(messages)
    for i in range(len(messages) - 1, n_head - 1, -1):
        budget -= window.count_text(_as_text(messages[i]))
        if budget < 0 and not must_keep:
            break
        if messages[i].role != "tool":
            first, must_keep = i, False
    return first


def _as_text(message: Message) -> str:
    return message.content + "".join(call.name + call.arguments for call in message.tool_calls)


async def _notes(
    model: ChatModel, messages: Sequence[Message], tools: Sequence[ToolSpec], window: Window, n_notes: int
) -> str:
    """The model's notes, of at most `n_notes` tokens. The request is the conversation plus one message, so that the
    prefix cache serves it."""
    asked = [*messages, Message("user", REQUEST)]
    while window.count(asked) + n_notes > window.limit and len(asked) > 3:
        asked = _without_oldest(asked)
    if window.count(asked) + n_notes > window.limit:
        return ""
    request = ChatRequest(tuple(asked), tuple(tools), n_notes, SamplingParams(), tool_choice="none")
    text: list[str] = []
    stream = model.stream(request)
    try:
        async for delta in stream:
            if isinstance(delta, AnswerText):
                text.append(delta.text)
    except EngineError:  # the plain notes stand in
        return ""
    finally:
        await cast(Any, stream).aclose()
    return "".join(text).strip()


def _without_oldest(asked: list[Message]) -> list[Message]:
    """Drop the oldest message after the first two, with the results of its calls."""
    end = 3
    while end < len(asked) - 1 and asked[end].role == "tool":
        end += 1
    return [*asked[:2], *asked[end:]]


def _plain_notes(dropped: Sequence[Message]) -> str:
    calls = [f"- {call.name} {call.arguments[:160]}" for message in dropped for call in message.tool_calls]
    last = next((m.content for m in reversed(dropped) if m.role == "assistant" and m.content), "")
    made = ["Calls made so far:", *calls[-40:]] if calls else ["No calls were made."]
    return "\n".join([*made, *([f"Last words: {last[-800:]}"] if last else [])])


def _plan(conversation: Conversation) -> str:
    """The model's plan while something of it is open."""
    if all(status == "done" for _, status in conversation.plan):
        return ""
    return "\n".join([PLAN_HEAD, *(f"- {status}: {text}" for text, status in conversation.plan)])


def _words(dropped: Sequence[Message], conversation: Conversation, window: Window) -> str:
    """The person's own words in the dropped part, the last ones most fully; what came with them (files, notes) not."""
    said = [
        message.content.partition(WORDS_HEAD)[2].strip()
        if message.content.startswith(NOTES_HEAD)
        else conversation.prompt_of(message)
        for message in dropped
        if message.role == "user"
    ]
    said = [words for words in said if words]
    clipped = [
        window.cut(words, max(100, window.limit // (8 if i == len(said) - 1 else 40))) for i, words in enumerate(said)
    ]
    return window.cut("\n".join(clipped), window.limit // 6)
