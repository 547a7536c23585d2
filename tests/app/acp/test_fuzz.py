"""Whatever an editor sends, every request gets exactly one answer and the agent goes on."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.acp.kit import EditorKit
from tests.fakes import ScriptedModel, say

METHODS = (
    *("initialize", "authenticate", "session/new", "session/load", "session/resume", "session/list", "session/close"),
    *("session/delete", "session/prompt", "session/cancel", "session/set_mode", "session/set_config_option"),
    *("$/cancel_request", "_vendor/x", "nothing", ""),
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
SHORT = st.text(max_size=8)
BLOCKS = st.lists(
    st.one_of(
        JUNK,
        st.fixed_dictionaries({"type": st.just("text"), "text": SHORT}),
        st.fixed_dictionaries({"type": st.just("resource_link"), "name": SHORT, "uri": SHORT}),
        st.fixed_dictionaries(
            {"type": st.just("resource"), "resource": st.fixed_dictionaries({"uri": SHORT, "text": SHORT})}
        ),
    ),
    max_size=3,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sessionId": st.just("SESSION") | JUNK,
    "cwd": st.just("FOLDER") | st.sampled_from(["/", "relative", "\0", "/\ud800"]) | JUNK,
    "mcpServers": st.just([]) | JUNK,
    "prompt": BLOCKS,
    "modeId": st.sampled_from(["ask", "plan", "nothing"]) | JUNK,
    "configId": st.sampled_from(["mode", "model"]) | JUNK,
    "value": st.sampled_from(["auto", "scripted"]) | JUNK,
    "cursor": st.sampled_from(["0", "50", "-1", "x"]) | JUNK,
    "protocolVersion": st.just(1) | JUNK,
    "requestId": st.integers(0, 9) | JUNK,
    "_meta": JUNK,
}
PARAMS = st.fixed_dictionaries({}, optional=VALUES) | JUNK
MESSAGES = st.lists(st.tuples(st.sampled_from(METHODS), PARAMS, st.booleans()), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(MESSAGES)
def test_every_request_has_exactly_one_answer(messages: list[tuple[str, Any, bool]]):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder), messages))


async def _play(folder: Path, messages: list[tuple[str, Any, bool]]) -> None:
    async with EditorKit(folder, ScriptedModel(*[say("ok")] * 40)) as editor:
        session = await editor.new()
        requests: list[str] = []
        for n, (method, params, is_request) in enumerate(messages):
            text = json.dumps(params).replace('"SESSION"', json.dumps(session))
            params = json.loads(text.replace('"FOLDER"', json.dumps(str(editor.ws))))
            message: dict[str, Any] = {"method": method, "params": params}
            if is_request:
                requests.append(f"r{n}")
                editor.methods[f"r{n}"] = method
                message["id"] = f"r{n}"
            editor.send(message)
        await editor.until(lambda: {m.get("id") for m in editor.messages} >= set(requests))
        answered = [m["id"] for m in editor.messages if "method" not in m and str(m["id"]).startswith("r")]
        assert not [m for m in editor.messages if m.get("error", {}).get("code") == -32603]
        assert sorted(answered) == sorted(requests)
        assert await editor.ask("session/list") is not None
