"""JSON answers."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from starlette.responses import JSONResponse

from .state import Served


class JsonAnswer(JSONResponse):
    """A JSON answer to any request: half of a surrogate pair, which JSON can spell and UTF-8 cannot, becomes "?"."""

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def completion_head(state: Served, prefix: str, kind: str) -> dict[str, Any]:
    """What OpenAI's completions of either kind begin with; `kind` is the value of `object`."""
    return {
        "id": prefix + uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": state.model.name,
        "system_fingerprint": None,
    }
