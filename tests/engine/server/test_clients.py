"""The published clients of OpenAI and Anthropic against the server on a real socket, blocking and asynchronous.

Importing them takes seconds: the tests do, collecting the tests does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pydantic
import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.http.state import ServerOptions

from .kit import HELLO, READ, Running, running

if TYPE_CHECKING:
    import anthropic
    import openai

KEY = "sekret"
CALL = {"max_tokens": 400, "temperature": 1.0, "seed": 11}
PARAMETERS: dict[str, Any] = READ["function"]["parameters"]


class Verdict(pydantic.BaseModel):
    """What a structured answer must be."""

    model_config = pydantic.ConfigDict(extra="forbid")
    ok: bool
    level: Literal["low", "high"]


@pytest.fixture(scope="module")
def server(model: LocalChatModel) -> Iterator[Running]:
    with running(model, ServerOptions(api_key=KEY)) as running_server:
        yield running_server


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    import openai

    http: Any = httpx.Client(verify=False)  # reading the list of authorities takes longer than the test
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, http_client=http) as made:
        yield made


@pytest.fixture
def claude(server: Running) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def in_openai(server: Running, work: Any) -> Any:
    import openai

    async def main() -> Any:
        http: Any = httpx.AsyncClient(verify=False)
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, http_client=http) as made:
            return await work(made)

    return asyncio.run(main())


# ----------------------------------------------------------------------------------------------- OpenAI
def test_chat_streams_what_it_says_whole(client: openai.OpenAI, server: Running) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "messages": HELLO, "temperature": 1.0, "seed": 11, "max_tokens": 30}
    whole = client.chat.completions.create(**wanted)
    chunks: list[Any] = list(
        client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    async def again(made: openai.AsyncOpenAI) -> str:
        stream = await made.chat.completions.create(**wanted, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    assert in_openai(server, again) == text


def test_chat_calls_tools_and_takes_their_results(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [READ], **CALL}
    wanted["stream_options"] = {"include_usage": True}
    with client.chat.completions.stream(**wanted, tool_choice="required", parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        final: Any = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    message: Any = final.choices[0].message
    assert final.choices[0].finish_reason == "tool_calls"
    call = message.tool_calls[0]
    assert call.function.name == "read"
    history: Any = [*HELLO, message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "two"}]
    answer: Any = client.chat.completions.create(model="tiny", messages=history, max_tokens=5, tools=[READ])
    assert answer.usage.prompt_tokens > final.usage.prompt_tokens


def test_chat_parses_structured_output(client: openai.OpenAI, server: Running) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "messages": HELLO, "response_format": Verdict, **CALL}
    parsed = client.chat.completions.parse(**wanted).choices[0].message.parsed
    assert isinstance(parsed, Verdict)

    async def again(made: openai.AsyncOpenAI) -> Any:
        return (await made.chat.completions.parse(**wanted)).choices[0].message.parsed

    assert in_openai(server, again) == parsed


def test_text_completions_stream_and_models_are_listed(client: openai.OpenAI, server: Running) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "prompt": "Once upon", "max_tokens": 20, "seed": 2, "temperature": 1}
    whole = client.completions.create(**wanted)
    assert "".join(c.choices[0].text for c in client.completions.create(**wanted, stream=True)) == whole.choices[0].text
    assert [entry.id for entry in client.models.list()] == ["tiny", "default"]

    async def again(made: openai.AsyncOpenAI) -> str:
        return "".join([c.choices[0].text async for c in await made.completions.create(**wanted, stream=True)])

    assert in_openai(server, again) == whole.choices[0].text


def test_responses_stream_text_and_are_continued(client: openai.OpenAI, server: Running) -> None:
    import openai

    wanted: dict[str, Any] = {"model": "tiny", "input": "hello", "instructions": "Be brief", "max_output_tokens": 30}
    wanted |= {"temperature": 1.0, "extra_body": {"seed": 11}}
    first: Any = client.responses.create(**wanted)
    with client.responses.stream(**wanted) as stream:
        events = list(stream)
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == first.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    more: dict[str, Any] = {"input": "more", "previous_response_id": first.id, "max_output_tokens": 3}
    next_one: Any = client.responses.create(model="tiny", **more)
    assert next_one.usage.input_tokens > first.usage.input_tokens - 10
    assert next_one.status == "incomplete"
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="tiny", input="more", previous_response_id=first.id)

    async def again(made: openai.AsyncOpenAI) -> str:
        return (await made.responses.create(**wanted)).output_text

    assert in_openai(server, again) == text


def test_responses_call_tools_and_parse_structured_output(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "read", "parameters": PARAMETERS, "strict": True}
    wanted: dict[str, Any] = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 400}
    with client.responses.stream(**wanted, tools=[tool], tool_choice="required", parallel_tool_calls=False) as stream:
        events = list(stream)
        final: Any = stream.get_final_response()
    call: Any = final.output[0]
    streamed = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert (call.name, call.arguments) == ("read", streamed)
    items: list[Any] = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": call.call_id, "name": "read", "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "two"},
    ]
    answer: Any = client.responses.create(
        model="tiny", input=items, tools=[tool], tool_choice="none", max_output_tokens=3
    )
    assert answer.usage.input_tokens > final.usage.input_tokens
    parsed = client.responses.parse(**wanted, text_format=Verdict).output_parsed
    assert isinstance(parsed, Verdict)


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI, server: Running) -> None:
    import openai

    for error, wanted in (
        (openai.BadRequestError, {"model": "tiny", "messages": HELLO, "max_tokens": 0}),
        (openai.NotFoundError, {"model": "gpt-9", "messages": HELLO}),
    ):
        with pytest.raises(error) as caught:
            client.chat.completions.create(**wanted)  # type: ignore[arg-type]
        assert caught.value.param in ("max_tokens", "model")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").models.list()


# ----------------------------------------------------------------------------------------------- Anthropic
def test_messages_stream_what_they_say_whole(claude: anthropic.Anthropic, server: Running) -> None:
    import anthropic

    wanted: dict[str, Any] = {"model": "tiny", "max_tokens": 30, "messages": HELLO, "system": "Be brief"}
    wanted["extra_body"] = {"temperature": 0}
    whole = claude.messages.create(**wanted)
    with claude.messages.stream(**wanted) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    count = claude.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief").input_tokens
    assert count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens

    async def again() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY) as made,
            made.messages.stream(**wanted) as stream,
        ):
            return "".join([piece async for piece in stream.text_stream])

    assert run(again()) == text


def run(work: Coroutine[Any, Any, str]) -> str:
    return asyncio.run(work)


def test_messages_call_tools_and_take_their_results(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "read", "description": "Reads", "input_schema": PARAMETERS}]
    wanted: dict[str, Any] = {"model": "tiny", "max_tokens": 400, "tools": tools}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    with claude.messages.stream(**wanted, messages=HELLO, tool_choice=choice) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert "input_json" in kinds
    use: Any = final.content[-1]
    assert (final.stop_reason, use.name) == ("tool_use", "read")
    assert use.input in ({"n": 1}, {"n": 2})
    results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "two"}]}]
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": [block.to_dict() for block in final.content]},
        {"role": "user", "content": [*results, {"type": "text", "text": "and?"}]},
    ]
    wanted["max_tokens"] = 3
    answer = claude.messages.create(**wanted, messages=history)
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > final.usage.input_tokens


def test_messages_parse_structured_output_and_name_their_stop_sequence(claude: anthropic.Anthropic) -> None:
    wanted: dict[str, Any] = {"model": "tiny", "max_tokens": 400, "messages": HELLO}
    assert isinstance(claude.messages.parse(**wanted, output_format=Verdict).parsed_output, Verdict)
    warm: dict[str, Any] = {**wanted, "max_tokens": 60, "extra_body": {"temperature": 1.0, "seed": 11}}
    whole = claude.messages.create(**warm).content[0].text
    stop = whole[5:9]
    answer = claude.messages.create(**warm, stop_sequences=["never", stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == whole[: whole.index(stop)]


def test_models_are_listed_for_either_client(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    listed = claude.models.list()
    assert [model.id for model in listed] == [model.id for model in client.models.list()]
    assert not listed.has_more and listed.first_id == "tiny"
    one = claude.models.retrieve("tiny")
    assert (one.type, one.display_name) == ("model", "tiny")
    assert one.created_at.timestamp() == client.models.retrieve("tiny").created


def test_message_errors_are_the_clients_own_exceptions(claude: anthropic.Anthropic, server: Running) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError, match="not served"):
        claude.messages.create(model="claude-9", max_tokens=3, messages=HELLO)
    image: Any = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
    with pytest.raises(anthropic.BadRequestError, match="image"):
        claude.messages.create(model="tiny", max_tokens=3, messages=[{"role": "user", "content": image}])
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong").messages.count_tokens(model="tiny", messages=HELLO)
