"""Routes that tell of the server itself: /v1/models (for OpenAI's and Anthropic's clients), /health, /metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .answers import JsonAnswer
from .state import Served, served


async def models(request: Request) -> Response:
    """Answers GET /v1/models."""
    state = served(request)
    page = {"has_more": False, "first_id": state.names[0], "last_id": state.names[-1]}
    return JsonAnswer({"object": "list", "data": [_model(state, name) for name in state.names], **page})


async def model(request: Request) -> Response:
    """Answers GET /v1/models/NAME; without a name it is the list."""
    state, name = served(request), request.path_params["name"]
    if not name:
        return await models(request)
    state.checked_model(name)
    return JsonAnswer(_model(state, name))


def _model(state: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": state.started_s,
        "created_at": datetime.fromtimestamp(state.started_s, UTC).isoformat(),
        "owned_by": "pointcode",
        "root": state.model.name,
        "max_model_len": state.model.context_tokens,
        "is_small": state.model.is_small,
        "takes_prefix": state.model.takes_prefix,
    }


async def health(request: Request) -> Response:
    """Answers GET /health: 200 while the engine gets on with its work."""
    problem = served(request).health.problem()
    if problem is None:
        return JsonAnswer({"status": "ok"})
    return JsonAnswer({"status": "failing", "problem": problem}, 503)


async def metrics(request: Request) -> Response:
    """Answers GET /metrics."""
    state = served(request)
    text = state.metrics.text(state.model.engine.stats())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
