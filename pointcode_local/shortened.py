"""A text cut to a length in its middle: the same from the same text, whoever counts."""

from __future__ import annotations


def shortened(text: str, n_chars: int) -> str:
    """`text`, or of a longer one about `n_chars` characters: head and tail stay, cut at line ends."""
    if len(text) <= n_chars:
        return text
    head, tail = text[: n_chars * 2 // 3], text[len(text) - n_chars // 3 :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    n_cut = len(text) - len(head) - len(tail)
    note = f"[{n_cut:,} of {len(text):,} characters are left out here to fit the context; ask for a smaller part]"
    return f"{head.rstrip(chr(10))}\n{note}\n{tail}"
