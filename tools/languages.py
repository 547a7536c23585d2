"""Which language a file name tells. Imports no grammar: asked of every file of a repository."""

from __future__ import annotations

import os
from pathlib import PurePath

LANGUAGES: dict[str, str] = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".tsx": "tsx",
    **dict.fromkeys((".sh", ".bash"), "bash"),
    ".json": "json",
    ".rs": "rust",
    ".go": "go",
    **dict.fromkeys((".c", ".h"), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hpp", ".hh", ".hxx"), "cpp"),
    ".java": "java",
    **dict.fromkeys((".html", ".htm"), "html"),
    ".css": "css",
}
# What the repository map reads: not data and markup.
SOURCES = frozenset(suffix for suffix, language in LANGUAGES.items() if language not in ("html", "css", "json"))
MAX_SOURCE_BYTES = 256 << 10  # what is larger was made by a program


def language_of(path: PurePath) -> str | None:
    """The grammar for a file name; None when there is none."""
    return LANGUAGES.get(path.suffix.lower())


def is_source(name: str) -> bool:
    """Does the repository map know files of this name?"""
    return os.path.splitext(name)[1].lower() in SOURCES  # noqa: PTH122 - 10,000 times at a start
