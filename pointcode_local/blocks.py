"""The edit menu "blocks": a small model reads and writes files and commands as code blocks, not as tool calls.

Models under about 3 B parameters write code far better in a code block than inside the strings of a JSON call. The
agent turns the blocks into calls of the usual tools, so permissions, checkpoints and results stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pointcode_local.engine.types import Message

_LANGUAGES = {
    **dict.fromkeys(
        ("c", "cpp", "cs", "css", "csv", "go", "html", "ini", "java", "json", "lua", "php", "sh", "sql"), ""
    ),
    **dict.fromkeys(("swift", "toml", "xml", "yaml"), ""),  # "": the suffix is the language's name
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("js", "mjs", "jsx"), "javascript"),
    **dict.fromkeys(("ts", "tsx"), "typescript"),
    **dict.fromkeys(("cc", "hpp"), "cpp"),
    "bash": "sh",
    "h": "c",
    "htm": "html",
    "md": "markdown",
    "rb": "ruby",
    "rs": "rust",
    "yml": "yaml",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKERS = re.compile(
    r"</?(?:tool_response|tool_call|tool_result|tools|function_call)>|\[/?tool_response\]|<\|im_\w+\|>"
)


def language(path: str) -> str:
    """The word after a block's fence for this file."""
    base = path.rpartition("/")[2]
    suffix = base.partition(".")[2].rpartition(".")[2].lower()
    return "makefile" if base == "Makefile" else (_LANGUAGES[suffix] or suffix) if suffix in _LANGUAGES else ""


def fence_of(body: str, path: str = "") -> str:
    """A fence longer than any in the body; Markdown files, which hold blocks themselves, get a long one."""
    longest = max((len(run) for run in re.findall(r"`{3,}", body)), default=3 if language(path) == "markdown" else 2)
    return "`" * (longest + 1)


def shown_file(path: str, body: str) -> str:
    """A file as the model sees it."""
    fence = fence_of(body, path)
    body = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", body)  # a byte that is no character
    return f"{path}:\n{fence}{language(path)}\n{body.rstrip()}\n{fence}"


def block_body(reply: str) -> str | None:
    """What stands in the first block of a reply; its end may be missing."""
    found = re.search(r"^(`{3,})[^\n`]*\n(.*?)(?:^\1[ \t]*$|\Z)", reply, re.DOTALL | re.MULTILINE)
    if found is None:
        return None
    body = found.group(2)
    return body if body.endswith("\n") or not body else body + "\n"


def as_blocks(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The history without tool calls: replies as they were written, results as messages of the user."""
    out: list[Message] = []
    for message in messages:
        shown = _shown(message)
        if out and shown.role == out[-1].role == "user":
            out[-1] = Message("user", f"{out[-1].content}\n\n{shown.content}")
        else:
            out.append(shown)
    return tuple(out)


def _shown(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"Result: {message.content.strip()}")
    if message.role == "assistant":
        calls = "\n".join(f"[{call.name} {call.arguments}]" for call in message.tool_calls)
        return Message("assistant", message.content or calls)
    return message


def without_markers(text: str) -> str:
    """An answer without the markers of tool calls and results that small models repeat."""
    return re.sub(r"\n{3,}", "\n\n", _MARKERS.sub("", text)).strip() if _MARKERS.search(text) else text
