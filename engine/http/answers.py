"""JSON answers."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class JsonAnswer(JSONResponse):
    """A JSON answer to any request: half of a surrogate pair, which JSON can spell and UTF-8 cannot, becomes "?"."""

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
