"""Lone surrogates: characters that JSON can carry, but no file, tokenizer or server takes."""

from __future__ import annotations


def without_surrogates(text: str) -> str:
    """`text` with a question mark for each."""
    return text.encode("utf-8", "replace").decode()
