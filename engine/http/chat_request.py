"""OpenAI's chat-completion request as a ChatRequest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ..types import ChatRequest, Message, ToolCall, ToolSpec
from .body import Body
from .errors import invalid
from .sampling import MAX_LOGPROBS, read_sampling, reseeded
from .state import Served

# Tokens of thinking for each effort; the model's own limit still holds.
EFFORTS = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16384, "xhigh": 32768}
_MAX_STOPS = 16
_MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed request: what the model is asked, once per choice, and how the answer is sent."""

    chat: ChatRequest
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int

    def of_choice(self, index: int) -> ChatRequest:
        """The request of one choice."""
        sampling = self.chat.sampling
        return replace(self.chat, sampling=reseeded(sampling, index) if sampling else None)


def read_chat(body: Body, state: Served, priority: int) -> ChatCall:
    """Parses the body; raises ApiError naming the member that cannot be honoured."""
    state.checked_model(body.text("model"))
    logprobs, top = _logprobs(body)
    model = state.model
    tools = tuple(read_tool(tool) for tool in body.objects("tools"))
    schema = _response_schema(body)
    choice = _tool_choice(body, tools)
    chat = ChatRequest(
        messages=read_messages(body),
        tools=tools,
        max_tokens=_max_tokens(body),
        sampling=read_sampling(body, model.default_sampling, model.engine.vocab, max(top, 1) if logprobs else 0),
        tool_choice=choice,
        parallel_tool_calls=body.flag("parallel_tool_calls", True),
        stop=body.texts("stop", _MAX_STOPS),
        response_schema=schema,
        reply_prefix=_reply_form(body, "reply_prefix", state, schema, choice, tools),
        reply_pattern=_reply_form(body, "reply_pattern", state, schema, choice, tools),
        reasoning_budget=_reasoning_budget(body),
        priority=priority,
    )
    n = body.integer("n", 1, state.options.limits.n_choices) or 1
    stream, include_usage = read_stream(body)
    accept_bookkeeping(body)
    body.finish()
    return ChatCall(chat, n, stream, include_usage, logprobs, top)


def read_stream(body: Body) -> tuple[bool, bool]:
    """(whether to stream, whether the stream ends with its usage)."""
    stream = body.flag("stream")
    options = body.object("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise invalid("stream_options", "only together with stream")
    include_usage = options.flag("include_usage")
    options.accept("include_obfuscation")
    options.finish()
    return stream, include_usage


def accept_bookkeeping(body: Body) -> None:
    """Members that name things, or that ask for what is so anyway; the answer does not depend on them."""
    body.accept("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
    if body.flag("store"):
        raise invalid(body.path("store"), "nothing is stored here")
    body.choice("service_tier", ("auto", "default"), "auto")
    if body.items("modalities") not in ([], ["text"]):
        raise invalid(body.path("modalities"), 'only ["text"]')


def _logprobs(body: Body) -> tuple[bool, int]:
    wanted = body.flag("logprobs")
    top = body.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise invalid("top_logprobs", "only together with logprobs")
    return wanted, top or 0


def _max_tokens(body: Body) -> int | None:
    newer, older = (body.integer(name, 1, _MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens"))
    if newer is not None and older is not None and newer != older:
        raise invalid("max_tokens", "differs from max_completion_tokens")
    return older if newer is None else newer


def _reasoning_budget(body: Body) -> int | None:
    if "reasoning_effort" not in body:
        return None
    return EFFORTS[body.choice("reasoning_effort", tuple(EFFORTS), "medium")]


def _reply_form(
    body: Body, name: str, state: Served, schema: object | None, choice: str, tools: Sequence[ToolSpec]
) -> str:
    """What our own client asks small models with: how the reply begins, and a pattern for what follows."""
    text = body.text(name)
    if text and not state.model.takes_prefix:
        raise invalid(name, "this model thinks before it answers")
    if text and (schema is not None or (tools and choice != "none")):
        raise invalid(name, "cannot be combined with response_format or tools")
    return text


def _response_schema(body: Body) -> dict[str, Any] | None:
    wanted = body.object("response_format")
    if wanted is None:
        return None
    kind = wanted.choice("type", ("text", "json_object", "json_schema"), "text")
    schema: dict[str, Any] | None = {"type": "object"} if kind == "json_object" else None
    if kind == "json_schema":
        stated = wanted.object("json_schema")
        if stated is None:
            raise invalid("response_format.json_schema", "is required")
        schema = read_schema(stated)
    wanted.finish()
    return schema


def read_schema(stated: Body) -> dict[str, Any]:
    """The schema of a json_schema format; it is enforced whether or not `strict` is said."""
    stated.accept("name", "description", "strict")
    schema = stated.mapping("schema")
    stated.finish()
    return {"type": "object"} if schema is None else schema


def read_tool(tool: Body) -> ToolSpec:
    """{type: function, function: {name, description, parameters}}."""
    tool.choice("type", ("function",), "function")
    function = tool.object("function")
    if function is None:
        raise invalid(tool.path("function"), "is required")
    tool.finish()
    return read_function(function)


def read_function(function: Body) -> ToolSpec:
    """{name, description, parameters}; without `strict`, what a grammar cannot hold of the schema is left free."""
    strict = function.flag("strict")
    parameters = function.mapping("parameters") or {"type": "object", "properties": {}}
    spec = ToolSpec(function.needed_text("name"), function.text("description"), parameters, strict)
    function.finish()
    return spec


def _tool_choice(body: Body, tools: Sequence[ToolSpec]) -> str:
    value = body.take("tool_choice")
    if isinstance(value, dict):
        chosen = body.inner("tool_choice", value)
        chosen.choice("type", ("function",), "function")
        function = chosen.object("function")
        if function is None:
            raise invalid("tool_choice.function", "is required")
        name = function.needed_text("name")
        function.finish()
        chosen.finish()
        return named_tool(name, tools)
    return word_choice(value, tools)


def word_choice(value: Any, tools: Sequence[ToolSpec]) -> str:
    """none, auto or required."""
    if value is None:
        return "auto"
    if value not in ("none", "auto", "required"):
        raise invalid("tool_choice", f"must be none, auto, required, or name a function, not {value!r}")
    if value == "required" and not tools:
        raise invalid("tool_choice", "is required, but there are no tools")
    return value


def named_tool(name: str, tools: Sequence[ToolSpec]) -> str:
    """The tool's name, when it is offered; the words none, auto and required are no names."""
    if name not in {tool.name for tool in tools} or name in ("none", "auto", "required"):
        raise invalid("tool_choice", f"names {name!r}, which is not among the tools")
    return name


# ----------------------------------------------------------------------------------------------- messages
def read_messages(body: Body) -> tuple[Message, ...]:
    """The conversation; leading system and developer messages become one system message."""
    stated = body.objects("messages")
    if not stated:
        raise invalid("messages", "must hold at least one message")
    names: dict[str, str] = {}
    return merge_system([_message(message, names) for message in stated])


def merge_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Templates know one system message, at the beginning."""
    n = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if n < 2:
        return tuple(messages)
    return Message("system", "\n\n".join(m.content for m in messages[:n])), *messages[n:]


def _message(message: Body, names: dict[str, str]) -> Message:
    role = message.choice("role", ("system", "developer", "user", "assistant", "tool"), "")
    content = read_text(message, "content")
    message.accept("name", "refusal", "audio", "annotations", "parsed")  # the last is openai-python's own
    read: Message
    match role:
        case "assistant":
            reasoning = message.text("reasoning_content") or message.text("reasoning")
            message.accept("reasoning")
            message.refuse("function_call", "is not supported; use tool_calls")
            calls = tuple(_call(call) for call in message.objects("tool_calls"))
            names.update((call.id, call.name) for call in calls)
            read = Message("assistant", content, reasoning, calls)
        case "tool":
            call_id = message.needed_text("tool_call_id")
            read = Message("tool", content, tool_call_id=call_id, name=names.get(call_id, ""))
        case _:
            read = Message("user" if role == "user" else "system", content)
    message.finish()
    return read


def read_text(message: Body, name: str) -> str:
    """A string, or a list of text parts joined; what is no text is refused."""
    value = message.take(name)
    if not isinstance(value, list):
        return "" if value is None else message.text(name)
    texts: list[str] = []
    parts = cast("list[Any]", value)
    for i, item in enumerate(parts):
        part = message.inner(f"{name}[{i}]", item)
        kind = part.text("type", "text")
        if kind not in ("text", "input_text", "output_text"):
            raise invalid(part.path("type"), f"this model reads text only, not {kind!r}")
        texts.append(part.text("text"))
        part.accept("annotations", "logprobs", "cache_control", "citations")
        part.finish()
    return "".join(texts)


def _call(call: Body) -> ToolCall:
    call.choice("type", ("function",), "function")
    call.accept("index")
    function = call.object("function")
    if function is None:
        raise invalid(call.path("function"), "is required")
    function.accept("parsed_arguments")  # openai-python's own
    read = ToolCall(call.text("id"), function.needed_text("name"), function.text("arguments"))
    function.finish()
    call.finish()
    return read
