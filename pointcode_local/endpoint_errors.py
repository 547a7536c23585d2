"""What OpenAI-compatible servers answer when something is wrong, as the engine's errors."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from pointcode_local.chunks import MAX_COUNT
from pointcode_local.engine.errors import BackendError, ContextOverflow, EngineError, RequestError

BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_BUSY_WORDS = re.compile(r"(?i)rate.?limit|overloaded|too many requests|server.{0,20}busy|try again (later|in )")
_OVERFLOW = re.compile(
    r"(?i)context.{0,40}(length|window|size|limit|holds)|maximum context|too many tokens|prompt is too long|"
    r"(maximum|max) (model|prompt|input|sequence) length|maximum number of (input )?tokens|"
    r"`inputs`( tokens \+| must have less than)"
)
_NUMBER = r"(\d[\d,]{0,15})(?![\d,])"
# Where servers say how long a context is, and how long the prompt was.
_CONTEXT = (
    re.compile(rf"(?i)(?:context holds|tokens allowed|n_ctx|must be <=|must have less than)\D{{0,12}}?{_NUMBER}"),
    re.compile(rf"(?i)(?:context (?:length|window|size)|(?:model|prompt|input|sequence) length)\D{{0,24}}?{_NUMBER}"),
    re.compile(rf"(?i){_NUMBER} maximum"),
)
_PROMPT = (
    re.compile(rf"(?i){_NUMBER} (?:in the messages|(?:tokens )?from the input|of text input)"),
    re.compile(rf"(?i){_NUMBER} (?:input|prompt|`inputs`) tokens"),
    re.compile(rf"(?i)(?:requested|resulted in|contains|have|has|of|prompt|input|request)\D{{0,24}}?{_NUMBER}"),
)


class BusyError(BackendError):
    """The server said within the stream that it is busy: nothing is wrong with it or the request."""


def error_of(status: int, text: str) -> EngineError:
    """The error that an answer with this status and body stands for."""
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        body = text.strip()[:500]
    message = error_text(body) or f"HTTP {status}"
    if (status in (400, 413, 422, 500) and _OVERFLOW.search(message)) or "context_length_exceeded" in text:
        return overflow_of(message, body)
    if status == 200:
        return RequestError("a web page answers there and no API: look at the address, or whether it wants a login")
    if status in (401, 403):
        return RequestError(f"the server refused the API key (HTTP {status}): {message}; set POINTCODE_API_KEY")
    return RequestError(f"HTTP {status}: {message}")


def error_in_stream(chunk: dict[str, Any]) -> EngineError:
    """The error that a chunk of a stream which had begun stands for."""
    message = error_text(chunk)
    kind = f"{_error(chunk).get('code')} {_error(chunk).get('type')}"
    if _status_of(chunk) in (429, 503, 529) or _BUSY_WORDS.search(f"{message} {kind}"):
        return BusyError(f"the server reported: {message}")
    return overflow_of(message, chunk) if _OVERFLOW.search(message) else BackendError(f"the server reported: {message}")


def error_text(body: Any) -> str:
    """The message in an error body, in the shapes servers use."""
    error: Any = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)
    return str(error)


def overflow_of(message: str, body: Any = None) -> ContextOverflow:
    """Reads the two numbers out of a complaint such as `… context length is 8192 tokens, but … 9000 tokens`.

    Other numbers may stand beside them: a completion's share, a sum. What no word tells is not known (0).
    """
    fields = _error(body)
    context = _count(fields.get("n_ctx")) or _labelled(message, _CONTEXT)
    told = _count(fields.get("n_prompt_tokens")) or _labelled(message, _PROMPT, but=context)
    if not context:
        numbers = sorted(map(_count, re.findall(r"\d[\d,]{2,15}", message)))
        context, told = (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
    return ContextOverflow(message, prompt_tokens=told, context_tokens=context)


def _labelled(message: str, labels: tuple[re.Pattern[str], ...], but: int = 0) -> int:
    found = (_count(match[1]) for label in labels for match in label.finditer(message))
    return next((n for n in found if n and n != but), 0)


def _count(value: Any) -> int:
    if isinstance(value, str):
        return int(value.replace(",", "") or 0)
    return value if isinstance(value, int) and 0 < value <= MAX_COUNT else 0


def _error(body: Any) -> dict[str, Any]:
    error: Any = body.get("error") if isinstance(body, dict) else None
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}


def _status_of(chunk: dict[str, Any]) -> int:
    code: Any = _error(chunk).get("code") or _error(chunk).get("status")
    return int(code) if isinstance(code, int) or (isinstance(code, str) and re.fullmatch(r"\d{3}", code)) else 0
