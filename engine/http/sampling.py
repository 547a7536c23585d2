"""Sampling parameters of a request, on top of the model's own."""

from __future__ import annotations

from dataclasses import replace

from ..errors import RequestError
from ..sampling import check_sampling
from ..types import SamplingParams
from .body import Body
from .errors import ApiError, invalid

MAX_LOGPROBS = 20
_I32 = 2**31 - 1


def read_sampling(body: Body, default: SamplingParams, vocab: int, n_logprobs: int = 0) -> SamplingParams:
    """temperature, top_p, top_k, min_p, penalties, logit_bias and seed; raises ApiError naming the parameter."""
    top_k = body.integer("top_k", -1, _I32)
    params = replace(
        default,
        temperature=body.number("temperature", default.temperature),
        top_p=body.number("top_p", default.top_p),
        top_k=default.top_k if top_k is None else max(0, top_k),  # some clients say -1 for "off"
        min_p=body.number("min_p", default.min_p),
        repetition_penalty=body.number("repetition_penalty", default.repetition_penalty),
        frequency_penalty=body.number("frequency_penalty", default.frequency_penalty),
        presence_penalty=body.number("presence_penalty", default.presence_penalty),
        logit_bias=_logit_bias(body),
        seed=body.integer("seed"),
        n_logprobs=n_logprobs,
    )
    try:
        check_sampling(params, vocab)
    except RequestError as error:
        param = str(error).split(" ", 1)[0].split("[")[0].rstrip(":")
        raise ApiError(400, str(error), param=param, code="invalid_value") from error
    return params


def _logit_bias(body: Body) -> dict[int, float]:
    stated = body.object("logit_bias")
    if stated is None:
        return {}
    bias: dict[int, float] = {}
    for name in stated.names():
        try:
            token = int(name)
        except ValueError:
            raise invalid("logit_bias", f"{name!r} is no token id") from None
        bias[token] = stated.number(name, 0.0)
    return bias


def reseeded(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of choice number `choice`: choices of one request must differ, and repeat with its seed."""
    return params if params.seed is None or choice == 0 else replace(params, seed=params.seed + choice)
