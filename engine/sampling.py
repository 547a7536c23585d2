"""Sampling parameters: checked here, carried to the native sampler as a `SamplingConfig`."""

from __future__ import annotations

import math
import secrets

from . import _native
from .errors import RequestError
from .types import SamplingParams

_U64 = (1 << 64) - 1


def check_sampling(params: SamplingParams, vocab: int) -> None:
    """Raises RequestError, naming the parameter and what it may be, for values the sampler cannot honour."""
    _require("temperature", params.temperature, 0.0, 100.0)
    _require("top_p", params.top_p, 0.0, 1.0)
    _require("min_p", params.min_p, 0.0, 1.0)
    _require("frequency_penalty", params.frequency_penalty, -100.0, 100.0)
    _require("presence_penalty", params.presence_penalty, -100.0, 100.0)
    _require("repetition_penalty", params.repetition_penalty, 1e-3, 1e3)
    _require("top_k", params.top_k, 0, 2**31 - 1)
    _require("n_logprobs", params.n_logprobs, 0, _native.MAX_LOGPROBS)
    for token, bias in params.logit_bias.items():
        if not 0 <= token < vocab:
            raise RequestError(f"logit_bias: token {token} is outside the vocabulary of {vocab}")
        _require(f"logit_bias[{token}]", bias, -1e4, 1e4)


def native_sampling(params: SamplingParams) -> _native.SamplingConfig:
    """The native form; seed None draws one, a negative seed counts modulo 2^64."""
    return _native.SamplingConfig(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=sorted(params.logit_bias.items()),
        seed=secrets.randbits(64) if params.seed is None else params.seed & _U64,
        n_logprobs=params.n_logprobs,
    )


def _require(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, not {value:g}")
