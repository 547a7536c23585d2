"""Log-probabilities of the engine as the chat level tells them."""

from __future__ import annotations

from collections.abc import Mapping

from .tokenizer import Tokenizer
from .types import TokenLogprob


def token_logprob(tokenizer: Tokenizer, token: int, values: Mapping[int, float], n_top: int) -> TokenLogprob:
    """`values` of the engine as bytes and the `n_top` most likely tokens."""
    best = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:n_top]
    return TokenLogprob(
        tokenizer.token_bytes(token), values[token], tuple((tokenizer.token_bytes(i), value) for i, value in best)
    )
