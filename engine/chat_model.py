"""The in-process ChatModel: messages in, parsed deltas out, over an Engine and the model's own template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from .assembly import assemble
from .call_grammar import answer_grammar, tool_call_grammar
from .chat import ConversationIds
from .chat_formats import ChatFormat, Mark, format_of, opens_reasoning, reasoning_end_id
from .chat_parse import ReplyParser
from .engine import Engine
from .errors import ContextOverflow, RequestError
from .model_files import ModelFiles, open_model
from .parts import EngineOptions, model_name
from .recommended import recommended_sampling
from .registry import resolve
from .reply import Reply
from .stops import StopMatcher
from .tool_schemas import ToolSchemas
from .types import (
    ChatDelta,
    ChatRequest,
    Grammar,
    Message,
    Request,
    ToolSpec,
)

DEFAULT_REASONING_BUDGET = 8192  # tokens; then the closing marker is forced
_LONG_CHARS, _MANY = 20_000, 500  # of a conversation with its tools; messages and tools
_NEVER = -1e4  # logit bias


class LocalChatModel:
    """A model in this process (engine.types.ChatModel). Owns the engine."""

    def __init__(self, engine: Engine, files: ModelFiles, *, reasoning_budget: int = DEFAULT_REASONING_BUDGET) -> None:
        self.engine = engine
        self.files = files
        self.default_sampling = recommended_sampling(files)
        self._reasoning_budget = reasoning_budget
        self._form = format_of(files.tokenizer)
        self._ids = ConversationIds(files.template)
        self._schemas = ToolSchemas(engine.schema_problem)

    @property
    def name(self) -> str:
        """The model's public name."""
        return self.engine.name

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self.engine.context_tokens

    @property
    def backend(self) -> str:
        """What decodes: "megakernel", "torch" or "cpu"."""
        return self.engine.backend

    @property
    def is_small(self) -> bool:
        """Whether it wants fewer tools and shorter schemas."""
        return self.files.is_small

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The ids that the model would be asked with."""
        return self._ids.prompt(messages, tools)

    @cached_property
    def takes_prefix(self) -> bool:
        """Whether `reply_prefix` and `reply_pattern` hold: not in a reply that begins with a thought."""
        try:
            prompt_ids = self.files.template.render([Message("user", "?")])
        except RequestError:
            return False
        return not opens_reasoning(prompt_ids, self.files.tokenizer, self._form)

    async def _prompt_of(self, request: ChatRequest) -> list[int]:
        """A long conversation is tokenised on another thread: the event loop has other streams to deliver."""
        self.check_length(sum(len(message.content) for message in request.messages))
        if not _is_long(request):
            ids = self.prompt_ids(request.messages, request.tools)
        else:
            ids = await asyncio.to_thread(self.prompt_ids, request.messages, request.tools)
        self.engine.check_length(len(ids))  # before the schemas of all the tools are looked at
        return ids

    def check_length(self, n_chars: int) -> None:
        """Raises ContextOverflow for a text so long that it need not be tokenised to know that it does not fit."""
        least = n_chars // self.files.tokenizer.longest_token_bytes
        if least >= self.context_tokens:
            raise ContextOverflow(
                f"the prompt has at least {least} tokens, but the context holds {self.context_tokens} with the answer",
                prompt_tokens=least,
                context_tokens=self.context_tokens,
            )

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """Prompt length in tokens."""
        return len(self.prompt_ids(messages, tools))

    async def aclose(self) -> None:
        """Frees everything; the prefix cache is saved."""
        await asyncio.to_thread(self.engine.close)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Continue the conversation; raises EngineError for a request that cannot be served."""
        prompt_ids = await self._prompt_of(request)
        in_reasoning = opens_reasoning(prompt_ids, self.files.tokenizer, self._form)
        tool_names = () if request.tool_choice == "none" else tuple(tool.name for tool in request.tools)
        reply = Reply(
            ReplyParser(
                self.files.tokenizer,
                self._form,
                tool_names,
                in_reasoning=in_reasoning,
                json_answer=request.response_schema is not None,
            ),
            StopMatcher(request.stop),
            self.files.tokenizer,
            n_top=request.sampling.n_logprobs if request.sampling else 0,
            one_call=not request.parallel_tool_calls,
        )
        given = [] if in_reasoning else self.files.tokenizer.encode(request.reply_prefix)
        first = self._token_request(await self._with_held_tools(request), [*prompt_ids, *given], in_reasoning)
        budget = self._reasoning_budget
        if request.reasoning_budget is not None:
            budget = min(budget, request.reasoning_budget)
        for delta in reply.begin_with(given):
            yield delta
        async with aclosing(self._run(first, reply, budget)) as deltas:
            async for delta in deltas:
                yield delta
        if reply.is_whole:
            self._ids.remember(request.messages, request.tools, reply.message(), prompt_ids, reply.ids)

    # ------------------------------------------------------------------ one reply
    async def _run(self, first: Request, reply: Reply, max_thought: int) -> AsyncGenerator[ChatDelta, None]:
        """Streams the reply; a thought that spent its budget is closed and the reply goes on from there."""
        end_id = reasoning_end_id(self.files.tokenizer, self._form)
        request = first
        while True:
            budget = max_thought if end_id is not None and request is first else None
            if budget != 0 or not reply.in_reasoning:
                async with aclosing(self._run_once(request, reply, budget)) as deltas:
                    async for delta in deltas:
                        yield delta
            left = first.max_tokens - reply.n_written - 1
            if reply.finished or end_id is None:
                return
            if left < 1:
                for delta in reply.finish("length"):
                    yield delta
                return
            for delta in reply.feed(end_id):
                yield delta
            request = replace(
                first,
                token_ids=(*first.token_ids, *reply.written_ids),
                max_tokens=left,
                grammar=self._after_thought(first.grammar),
            )

    async def _run_once(self, request: Request, reply: Reply, budget: int | None) -> AsyncGenerator[ChatDelta, None]:
        """Until the reply is finished, or its thinking has used up `budget` tokens."""
        async with aclosing(self.engine.stream(request)) as events:
            async for event in events:
                for delta in reply.hear(event, budget):
                    yield delta
                if reply.finished or reply.has_thought(budget):
                    return

    async def _with_held_tools(self, request: ChatRequest) -> ChatRequest:
        """The request with schemas that a grammar can hold; a new one is looked at on another thread."""
        tools = () if request.tool_choice == "none" else request.tools
        if not tools:
            return request
        known = self._schemas.know(tools)
        held = self._schemas.held(tools) if known else await asyncio.to_thread(self._schemas.held, tools)
        return replace(request, tools=held)

    def _token_request(self, request: ChatRequest, prompt_ids: Sequence[int], in_reasoning: bool) -> Request:
        room = max(1, self.context_tokens - len(prompt_ids))
        sampling = request.sampling or self.default_sampling
        if request.tool_choice == "none" and request.tools:
            call_begin = self.files.tokenizer.markers.get(self._form.call_begin)
            bias = {} if call_begin is None else {call_begin: _NEVER}
            sampling = replace(sampling, logit_bias={**sampling.logit_bias, **bias})
        return Request(
            token_ids=tuple(prompt_ids),
            max_tokens=room if request.max_tokens is None else request.max_tokens,
            sampling=sampling,
            stop_ids=self.files.stop_ids,
            grammar=self._grammar(request, in_reasoning),
            priority=request.priority,
        )

    def _after_thought(self, grammar: Grammar | None) -> Grammar | None:
        """A grammar that waits for the end of the thought holds now: the end is part of the prompt."""
        ends = grammar is not None and grammar.trigger == _marker_text(self._form, Mark.REASONING_END)
        return replace(grammar, trigger="") if grammar is not None and ends else grammar

    def _grammar(self, request: ChatRequest, in_reasoning: bool) -> Grammar | None:
        """What holds the reply: a schema for the answer, forced calls, or the form of calls once one begins."""
        tokenizer, form = self.files.tokenizer, self._form
        trigger = _marker_text(form, Mark.REASONING_END) if in_reasoning else ""
        choice, tools = request.tool_choice, request.tools
        schema, parallel = request.response_schema, request.parallel_tool_calls
        if schema is not None and choice in ("auto", "none"):
            offered = tools if choice == "auto" else ()
            return answer_grammar(schema, form, tokenizer, offered, parallel=parallel, trigger=trigger)
        if request.reply_pattern:
            return Grammar("lark", f"start: /{request.reply_pattern}/", trigger, repeats=False)
        if choice == "none" or (choice == "auto" and not tools):
            return None
        if choice == "auto":
            return tool_call_grammar(tools, form, tokenizer, parallel=parallel)
        allowed = [tool for tool in tools if choice in ("required", tool.name)]
        if not allowed:
            raise RequestError(f"tool_choice is {choice!r}, but no such tool is offered")
        parallel = parallel and choice == "required"
        forced = tool_call_grammar(allowed, form, tokenizer, forced=True, parallel=parallel)
        return replace(forced, trigger=trigger, repeats=False)


def _is_long(request: ChatRequest) -> bool:
    """Whether tokenising takes so long that others would notice."""
    if len(request.messages) + len(request.tools) >= _MANY:
        return True
    n_chars = sum(len(m.content) + len(m.reasoning) for m in request.messages)
    n_chars += sum(len(call.arguments) for m in request.messages for call in m.tool_calls)
    if n_chars < _LONG_CHARS:
        n_chars += sum(len(t.description) + len(json.dumps(t.parameters, default=dict)) for t in request.tools)
    return n_chars >= _LONG_CHARS


def open_chat_model(model: str | Path, options: EngineOptions) -> LocalChatModel:
    """Opens a model by path, registered name or hub id. Raises ModelError, DownloadError, BackendError."""
    files = open_model(resolve(str(model)), options.cache_dir)
    return LocalChatModel(Engine(assemble(files, model_name(model), options)), files)


def _marker_text(form: ChatFormat, mark: Mark) -> str:
    return next(text for text, kind in form.marks.items() if kind is mark)
