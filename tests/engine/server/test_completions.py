"""/v1/completions, /tokenize and /detokenize on a tiny random model."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.http import handler

from .kit import HELLO, Asked, events_of

PATH = "/v1/completions"
WARM = {"prompt": "Once upon a time", "temperature": 1.0, "seed": 3, "max_tokens": 30, "ignore_eos": True}


def text_of(chunks: list[Any], index: int = 0) -> str:
    found = [c for chunk in chunks if chunk != "[DONE]" for c in chunk["choices"] if c["index"] == index]
    return "".join(c["text"] for c in found)


def test_a_stream_says_what_the_whole_answer_says(asked: Asked) -> None:
    status, whole = asked.post(PATH, **WARM)
    chunks = asked.stream(PATH, **WARM, stream_options={"include_usage": True})
    assert status == 200
    assert text_of(chunks) == whole["choices"][0]["text"] != ""
    assert chunks[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 30
    assert whole["choices"][0]["finish_reason"] == "length"


def test_many_prompts_with_choices_are_numbered_prompt_by_prompt(asked: Asked, model: LocalChatModel) -> None:
    prompts = ["Once upon a time", "twice"]
    _, body = asked.post(PATH, **{**WARM, "prompt": prompts}, n=2)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][0]["text"] == asked.post(PATH, **WARM)[1]["choices"][0]["text"]
    ids = [model.files.tokenizer.encode(prompt) for prompt in prompts]
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert body["usage"]["completion_tokens"] == 4 * 30
    _, same = asked.post(PATH, **{**WARM, "prompt": ids}, n=2)
    assert same["choices"] == body["choices"]


def test_the_prompt_is_echoed_when_that_is_asked_for(asked: Asked) -> None:
    plain = asked.post(PATH, **WARM)[1]["choices"][0]["text"]
    assert asked.post(PATH, **WARM, echo=True)[1]["choices"][0]["text"] == WARM["prompt"] + plain
    assert text_of(asked.stream(PATH, **WARM, echo=True)) == WARM["prompt"] + plain


def test_an_event_is_one_line_also_for_clients_that_cut_at_other_line_breaks(asked: Asked) -> None:
    prompt = "a\x85b\u2028c\u2029d\x0b\x0c\x1ce\r"
    answer = asked.request("POST", PATH, json={"prompt": prompt, "echo": True, "stream": True, "max_tokens": 1})
    lines = [line for line in answer.text.splitlines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert text_of(events_of("\n".join(lines))).startswith(prompt)


def test_logprobs_have_an_entry_per_token(asked: Asked) -> None:
    _, body = asked.post(PATH, **WARM, logprobs=2)
    logprobs = body["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 30
    assert all(len(top) <= 2 for top in logprobs["top_logprobs"])
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    chunks = asked.stream(PATH, **WARM, logprobs=2)
    streamed = [t for c in chunks[:-1] for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    assert streamed == logprobs["tokens"]


def test_pieces_of_characters_are_named_by_their_bytes_in_logprobs(asked: Asked, model: LocalChatModel) -> None:
    begin = next(i for i in range(model.engine.vocab) if model.files.tokenizer.token_bytes(i) == b"\xf0")
    _, body = asked.post(PATH, prompt="x", max_tokens=3, logit_bias={str(begin): 100}, logprobs=20)
    choice = body["choices"][0]
    assert choice["text"] == "\ufffd" * 3
    assert choice["logprobs"]["tokens"] == [r"bytes:\xf0"] * 3
    assert choice["logprobs"]["text_offset"] == [0, 0, 1], "a piece is text when it is known that nothing completes it"
    _, body = asked.post(PATH, **WARM, logprobs=20)
    assert {len(top) for top in body["choices"][0]["logprobs"]["top_logprobs"]} == {20}, "no two have one name"


def test_a_stop_string_is_never_shown(asked: Asked) -> None:
    whole = asked.post(PATH, **WARM)[1]["choices"][0]["text"]
    stop = whole[5:9]
    _, body = asked.post(PATH, **WARM, stop=stop)
    assert body["choices"][0]["text"] == whole[: whole.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < 30


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("prompt", None),
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [320]),
        ("prompt", [-1]),
        ("prompt", [1.5]),
        ("prompt", [[]]),
        ("prompt", {"a": 1}),
        ("prompt", ["a"] * 65),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("best_of", 2),
        ("suffix", "x"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(asked: Asked, param: str, value: Any) -> None:
    status, body = asked.post(PATH, **{**WARM, param: value})
    assert status == 400
    assert body["error"]["param"] == param


def test_a_character_that_the_prompt_left_incomplete_is_completed(asked: Asked, model: LocalChatModel) -> None:
    tokenizer = model.files.tokenizer
    family = "👨‍👩‍👧"
    ids = tokenizer.encode("x" + family)
    assert tokenizer.decode(ids) == "x" + family
    rest = ids[-1]  # the last byte of the last emoji
    assert len(tokenizer.token_bytes(rest)) == 1
    bias = {str(rest): 100}
    _, body = asked.post(PATH, prompt=ids[:-1], max_tokens=1, logit_bias=bias)
    assert body["choices"][0]["text"] == "👧"
    _, body = asked.post(PATH, prompt=ids[:-1], max_tokens=1, logit_bias=bias, echo=True)
    assert body["choices"][0]["text"] == "x" + family


def test_a_tail_that_is_cut_inside_a_character_is_flushed(asked: Asked, model: LocalChatModel) -> None:
    begin = next(i for i in range(model.engine.vocab) if model.files.tokenizer.token_bytes(i) == b"\xf0")
    _, body = asked.post(PATH, prompt="x", max_tokens=1, logit_bias={str(begin): 100})
    assert body["choices"][0]["text"] == "\ufffd"


@pytest.mark.parametrize("text", ["", " leading", "a  b\n\n c", "é👨‍👩‍👧z", "<|im_end|>", "\u200d"])
def test_texts_survive_tokenize_and_detokenize(asked: Asked, text: str) -> None:
    _, found = asked.post("/tokenize", prompt=text, return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert asked.post("/detokenize", tokens=found["tokens"])[1] == {"prompt": text}


def test_tokenize_counts_a_conversation_as_the_chat_route_does(asked: Asked) -> None:
    _, found = asked.post("/tokenize", messages=HELLO)
    _, answer = asked.post("/v1/chat/completions", messages=HELLO, max_tokens=1)
    assert found["count"] == answer["usage"]["prompt_tokens"]
    assert asked.post("/detokenize", tokens=[0, 320])[0] == 400
    assert asked.post("/tokenize")[1]["error"]["param"] == "prompt"
    assert asked.post("/tokenize", prompt="x", messages=HELLO)[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello world " * 200_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello world " * 200_000}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello world " * 200_000}], "max_tokens": 1}),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    asked: Asked, model: LocalChatModel, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(model.files.tokenizer, "encode", lambda text: pytest.fail("tokenised"))
    status, answer = asked.post(path, **body)
    assert status == 400
    assert "the context holds 4096" in answer["error"]["message"]


def test_a_large_request_is_read_beside_the_event_loop(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    read = handler.load_object

    def noted(data: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return read(data)

    monkeypatch.setattr(handler, "load_object", noted)
    for n, is_beside in ((10, False), (20_000, True)):
        status, _ = asked.post("/v1/completions", prompt=[40] * n, max_tokens=1)
        assert status == (400 if is_beside else 200)
        assert (threads.pop() is not threading.main_thread()) == is_beside


@pytest.mark.parametrize("stop", ["a" * 1001, ["x", "y" * 5000]])
def test_a_stop_string_of_pages_is_refused(asked: Asked, stop: Any) -> None:
    status, body = asked.post("/v1/completions", prompt="x", stop=stop)
    assert (status, body["error"]["param"]) == (400, "stop")
