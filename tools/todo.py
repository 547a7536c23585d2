"""The `todo` tool: the model's plan, kept whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolResult, object_schema

STATUSES = ("pending", "in_progress", "done")


class TodoTool(BaseTool):
    """Replaces the plan that the person sees."""

    name = "todo"
    access: Access = "none"
    description = "Show the person your plan for a task of several steps. Give the whole list each time."
    parameters = object_schema(
        {
            "items": {
                "type": "array",
                "items": object_schema(
                    {"text": {"type": "string"}, "status": {"type": "string", "enum": list(STATUSES)}},
                    ("text", "status"),
                ),
            }
        },
        ("items",),
    )

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`todo: N items`."""
        return f"todo: {len(arguments.get('items', []))} items"

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        items = tuple((item["text"], item["status"]) for item in arguments["items"])
        context.on_todo(items)
        done = sum(status == "done" for _, status in items)
        return ToolResult(f"The plan has {len(items)} items, {done} done.")
