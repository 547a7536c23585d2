"""The `write` tool: a whole file at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .atomic import require_writable
from .base import Access, BaseTool, FileChange, ToolContext, ToolError, ToolResult, object_schema
from .edit import count_lines, describe_faults
from .filetext import decode, require_unicode
from .placeholders import placeholder_in
from .workspace import Place, Workspace


class WriteTool(BaseTool):
    """Creates a file, or replaces one whose present bytes the model has read."""

    name = "write"
    access: Access = "write"
    description = (
        "Create a file (missing folders too) with exactly this content. Replacing an existing file needs an "
        "earlier read "
        "of it; to change a part, use edit."
    )
    parameters = object_schema({"path": {"type": "string"}, "content": {"type": "string"}}, ("path", "content"))

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """The change as it would be made now."""
        try:
            return (_change(context.workspace, context.workspace.resolve(arguments["path"]), arguments["content"]),)
        except OSError:
            return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        place = context.place(arguments["path"])
        async with workspace.locked(place.path):
            change = _change(workspace, place, arguments["content"])
            workspace.commit((change,))
            workspace.note_seen(place.path, change.after or b"")
        verb = "Created" if change.before is None else "Replaced"
        n_lines = count_lines(change.after or b"")
        text = f"{verb} {place.name} ({n_lines} line{'' if n_lines == 1 else 's'})."
        return ToolResult(text + describe_faults(change), changes=(change,))


def _change(workspace: Workspace, place: Place, content: str) -> FileChange:
    if place.text.endswith("/"):
        raise ToolError(f"{place.text} names a folder; give a file name")
    require_writable(place.path)
    require_unicode(content)
    before = workspace.files.read(place.path)
    if before is None:
        return FileChange(place.path, None, content.encode("utf-8"))
    if (reason := workspace.unseen_reason(place.path, before)) is not None:
        raise ToolError(f"{place.text} was not written: {reason}")
    return FileChange(place.path, before, _encoded(before, content))


def _encoded(before: bytes, content: str) -> bytes:
    if not before:
        return content.encode("utf-8")
    file = decode(before)
    if (left_out := placeholder_in(content, file.text)) is not None:
        raise ToolError(
            f"the content holds a placeholder for left-out text ({left_out!r}); write the whole file, or use edit"
        )
    return file.whole(content)
