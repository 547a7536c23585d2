"""The frozen types that cross the engine's borders.

Two levels. *Tokens*: `Request` in, a stream of `TokenEvent` out (`Engine.stream`). *Chat*: `ChatRequest` in, a stream
of `ChatDelta` out (`ChatModel.stream`); a `ChatModel` is the in-process engine with its template and parser, or any
OpenAI-compatible endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]


# --------------------------------------------------------------------------------------------------- tokens
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch those filters off.

    Filters apply in the order penalties, temperature, top_k, top_p, min_p. `seed` keys a counter-based generator by
    (seed, position), so the same request gives the same text whatever else is in the batch; None draws a seed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    n_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output: a JSON schema or a Lark grammar (llguidance syntax).

    It holds from the first token, or, with `trigger`, from the moment the output contains that text (the trigger itself
    is matched literally and the grammar covers what follows it). When it is complete, only a stop id may follow; with a
    trigger and `repeats`, the output is free again until the next trigger.
    """

    kind: Literal["json_schema", "lark"]
    source: str
    trigger: str = ""
    repeats: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One completion over token ids. `max_tokens` counts new tokens; `stop_ids` end the stream and are not emitted."""

    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost. Times are seconds; `time_to_first_token_s` counts from submission, decode time from it."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed, the first token not counted (it belongs to prefill)."""
        return (self.completion_tokens - 1) / self.decode_s if self.completion_tokens > 1 and self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done_tokens` of `total_tokens` prompt tokens are in the KV cache, `cached_tokens` from the prefix cache. In the
    middle of a long chunk the work on it counts as so many tokens, though none of them is complete."""

    done_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokensDecoded:
    """New tokens, in order; `logprobs[i]` maps id to natural-log probability when the request asked for them."""

    ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """The last event of every stream that was not cancelled by closing it."""

    reason: FinishReason
    usage: Usage
    error: str | None = None


TokenEvent = PrefillProgress | TokensDecoded | StreamFinished

RequestState = Literal["waiting", "reading", "writing"]  # in the queue; its prompt is computed; a row of the batch


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request that is under way: `done_tokens` of its prompt are in the KV cache, `new_tokens` were decoded."""

    id: int
    state: RequestState
    prompt_tokens: int
    done_tokens: int
    cached_tokens: int
    new_tokens: int = 0


# --------------------------------------------------------------------------------------------------- chat
@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is a JSON schema of type object.

    `strict`: a schema to which the arguments cannot be held exactly fails the request; otherwise that part is free.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. `arguments` is the raw JSON text exactly as the model wrote it (it may be invalid)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Assistant messages may carry reasoning and tool calls; a tool message answers `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue. `max_tokens` None means: to the end of the context.

    `reply_prefix` is text that the reply begins with, as if the model had written it; `reply_pattern` a regular
    expression (llguidance syntax) for what follows it. Remote models know neither.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    sampling: SamplingParams | None = None
    tool_choice: str = "auto"  # "auto", "none", "required", or a tool's name
    parallel_tool_calls: bool = True
    stop: tuple[str, ...] = ()
    response_schema: Mapping[str, object] | None = None
    reply_prefix: str = ""
    reply_pattern: str = ""
    reasoning_budget: int | None = None  # most tokens of thinking; None: the model's own limit
    priority: int = 0  # higher is admitted first


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer: its bytes, natural-log probability, and the most likely tokens there, best first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of the visible answer. `logprobs` tells of the tokens it came from, when `n_logprobs` asked for them."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """A tool call opened; `index` numbers the calls of this reply from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the call's argument JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallReady:
    """The call is complete and may start now. `call.arguments` is the whole argument text."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ChatFinished:
    """The last delta of a reply. A call cut by the token limit was begun but never ready."""

    reason: FinishReason
    usage: Usage
    error: str | None = None
    stop_sequence: str | None = None  # the stop string that ended it
    reasoning_tokens: int = 0  # of the completion tokens


ChatDelta = (
    PrefillProgress | ReasoningText | AnswerText | ToolCallBegun | ToolCallArguments | ToolCallReady | ChatFinished
)


class ChatModel(Protocol):
    """A model one can chat with. Closing the iterator of `stream` cancels the request within one decode step."""

    @property
    def name(self) -> str:
        """The model's public name, as shown to the user."""
        ...

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""
        ...

    @property
    def is_small(self) -> bool:
        """True for models under about 3 B parameters, which want fewer tools and shorter schemas."""
        ...

    def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Continue the conversation; raises EngineError for a request that cannot be served."""
        ...

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """Prompt length in tokens (an estimate where the model is remote)."""
        ...

    async def aclose(self) -> None:
        """Free everything; further calls fail."""
        ...
