"""The `ask` tool: a question to the person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema


class AskTool(BaseTool):
    """Waits for the person's answer; says so at once where nobody can be asked."""

    name = "ask"
    access: Access = "none"
    description = (
        "Ask the person a question when you cannot go on without the answer; offer options where there are some."
    )
    parameters = object_schema(
        {"question": {"type": "string"}, "options": {"type": "array", "items": {"type": "string"}}}, ("question",)
    )

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`ask: QUESTION`."""
        return f"ask: {arguments.get('question', '')}"

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        question = arguments["question"].strip()
        if not question:
            raise ToolError("the question is empty")
        if context.ask is None:
            return ToolResult("Nobody can be asked in this run. Decide yourself, say what you assumed, and go on.")
        answer = await context.ask(question, tuple(arguments.get("options", ())))
        return ToolResult(f"The person answered: {answer}")
