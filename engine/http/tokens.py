"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answers import JsonAnswer
from .body import Body, token_ids
from .chat_request import read_messages, read_tool
from .errors import invalid
from .handler import read_request
from .state import Served, served


async def tokenize(request: Request) -> Response:
    """Answers POST /tokenize: ids of a text (`prompt`), or of a conversation (`messages`, `tools`)."""
    state = served(request)
    return JsonAnswer(await read_request(request, lambda body: _tokens(body, state)))


def _tokens(body: Body, state: Served) -> dict[str, Any]:
    state.checked_model(body.text("model"))
    if body.flag("add_special_tokens"):
        raise invalid("add_special_tokens", "only false: texts are encoded as they are")
    tokenizer = state.model.files.tokenizer
    if "messages" in body:
        body.refuse("prompt", "not together with messages")
        tools = [read_tool(tool) for tool in body.objects("tools")]
        ids = state.model.prompt_ids(read_messages(body), tools)
    elif "prompt" in body:
        ids = tokenizer.encode(body.text("prompt"))
    else:
        raise invalid("prompt", "is required (or messages)")
    with_texts = body.flag("return_token_strs")
    body.finish()
    texts = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids] if with_texts else None
    context = state.model.context_tokens
    return {"count": len(ids), "max_model_len": context, "tokens": list(ids), "token_strs": texts}


async def detokenize(request: Request) -> Response:
    """Answers POST /detokenize."""
    state = served(request)

    def text(body: Body) -> str:
        state.checked_model(body.text("model"))
        ids = token_ids(body.items("tokens"), state.model.engine.vocab, "tokens")
        body.finish()
        return state.model.files.tokenizer.decode(ids)

    return JsonAnswer({"prompt": await read_request(request, text)})
