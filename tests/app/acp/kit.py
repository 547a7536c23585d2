"""An editor for tests: speaks the protocol line by line over real pipes with the real front end, over scripted models.

Everything happens in one event loop. Every message of the agent is checked against the schema as it comes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from acp.agent.connection import AgentSideConnection

from pointcode_local.acp.server import EditorAgent
from pointcode_local.acp.wire import Wire
from pointcode_local.compose import Setup
from pointcode_local.config import Settings, find_places
from pointcode_local.engine.errors import ModelError
from pointcode_local.hosts import AppHosts
from tests.app.acp.schema import check
from tests.fakes import ScriptedModel

Message = dict[str, Any]
Answer = Callable[[Message], Any]  # params of the agent's request -> result; Later leaves it open; an Exception refuses


class Later:
    """An answer that the test gives itself."""


class Refused(Exception):
    """An answer that is an error."""


class EditorKit:
    """`async with EditorKit(folder, model, …) as editor`; the folder `ws` is the workspace."""

    def __init__(
        self,
        folder: Path,
        *models: ScriptedModel,
        settings: Settings | None = None,
        capabilities: Message | None = None,
        answers: dict[str, Answer] | None = None,
    ) -> None:
        self.ws = folder / "ws"
        self.ws.mkdir(exist_ok=True)
        self.places = find_places({"POINTCODE_HOME": str(folder / "home")})
        self.settings = settings or Settings()
        self.models = list(models)
        self.opened: list[str] = []
        self.capabilities = capabilities or {}
        self.answers = dict(answers or {})
        self.messages: list[Message] = []
        self.asked: list[Message] = []  # requests of the agent
        self.methods: dict[Any, str] = {}
        self._waiting: dict[Any, asyncio.Future[Message]] = {}
        self._came = asyncio.Condition()
        self._n = 0
        self._open: Callable[..., Any] = self._open_model

    # ------------------------------------------------------------------------------------------- life
    async def __aenter__(self) -> EditorKit:
        to_agent, ours = os.pipe()
        theirs, from_agent = os.pipe()
        self._to_agent, self._pipes = ours, (to_agent, from_agent)

        def prepare(cwd: Path) -> Setup:
            return Setup(self.settings, self.places, cwd)

        hosts = AppHosts(prepare, self.places, lambda *asked: self._open(*asked))
        self.wire = Wire(to_agent, from_agent)
        self.agent = EditorAgent(hosts, self.wire)
        self._connection = AgentSideConnection(
            cast("Any", self.agent), self.wire, listening=False, use_unstable_protocol=True
        )
        self._serving = asyncio.create_task(self._serve(hosts))
        reader = asyncio.StreamReader(limit=64 << 20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(theirs, "rb")
        )
        self._transport = transport
        self._reading = asyncio.create_task(self._read(reader))
        self.hello = await self.ask("initialize", protocolVersion=1, clientCapabilities=self.capabilities)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._to_agent >= 0:
            os.close(self._to_agent)
        await self._serving
        os.close(self._pipes[1])
        await self._reading
        self._transport.close()
        os.close(self._pipes[0])

    async def _serve(self, hosts: AppHosts) -> None:
        await self._connection.listen()
        await self.agent.close()
        await self.wire.settle(5.0)
        await self._connection.close()
        await hosts.close()

    def use(self, open_model: Callable[..., Any]) -> None:
        """Open models in this way from now on."""
        self._open = open_model

    async def _open_model(self, settings: Settings, places: Any, on_progress: Any) -> ScriptedModel:
        self.opened.append(settings.model)
        if settings.model == "broken":
            raise ModelError("no such model")
        return self.models.pop(0)

    # ------------------------------------------------------------------------------------------- messages
    def send(self, message: Any) -> None:
        """A line to the agent: a message without its version, or bytes as they are."""
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        os.write(self._to_agent, line + b"\n")

    def request(self, method: str, /, **params: Any) -> asyncio.Future[Message]:
        """Send a request; the future gives its whole answer."""
        self._n += 1
        self.methods[self._n] = method
        future = self._waiting[self._n] = asyncio.get_running_loop().create_future()
        self.send({"id": self._n, "method": method, "params": params})
        return future

    @property
    def last_id(self) -> int:
        """The id of the last request."""
        return self._n

    async def ask(self, method: str, /, **params: Any) -> Any:
        """The result of a request."""
        answer = await self.request(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    async def refused(self, method: str, /, **params: Any) -> Message:
        """The error of a request."""
        return (await self.request(method, **params))["error"]

    def notify(self, method: str, /, **params: Any) -> None:
        """Send a notification."""
        self.send({"method": method, "params": params})

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message: Message = json.loads(line)
            self.messages.append(message)
            if "method" in message:
                check(message, message["method"])
                if "id" in message:
                    self.asked.append(message)
                    self._answer(message)
            else:
                check(message, self.methods.get(message["id"], ""))
                if (future := self._waiting.pop(message["id"], None)) is not None:
                    future.set_result(message)
            async with self._came:
                self._came.notify_all()

    def _answer(self, message: Message) -> None:
        answer = self.answers.get(message["method"])
        try:
            result = answer(message["params"]) if answer else Refused("not supported")
        except Refused as error:
            result = error
        if isinstance(result, Refused):
            self.send({"id": message["id"], "error": {"code": -32603, "message": str(result)}})
        elif not isinstance(result, Later):
            self.send({"id": message["id"], "result": result})

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for messages until the condition holds (the test's own time-out ends a wait in vain)."""
        async with self._came:
            await self._came.wait_for(condition)
        return condition()

    # ------------------------------------------------------------------------------------------- sessions
    async def new(self, **more: Any) -> str:
        """A new session in the workspace."""
        result = await self.ask("session/new", **{"cwd": str(self.ws), "mcpServers": [], **more})
        return result["sessionId"]

    def begin(self, session: str, text: str = "Go.") -> asyncio.Future[Message]:
        """Send a prompt."""
        return self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def prompt(self, session: str, text: str = "Go.") -> str:
        """Play a prompt to its end; the stop reason."""
        answer = await self.begin(session, text)
        assert "result" in answer, answer
        return answer["result"]["stopReason"]

    def updates(self, kind: str = "", session: str = "") -> list[Message]:
        """The updates that came, in order."""
        found = [m["params"] for m in self.messages if m.get("method") == "session/update"]
        return [
            p["update"]
            for p in found
            if (not kind or p["update"]["sessionUpdate"] == kind) and (not session or p["sessionId"] == session)
        ]

    def said(self, session: str = "") -> str:
        """The answer's text."""
        return "".join(u["content"]["text"] for u in self.updates("agent_message_chunk", session))

    def call(self, call_id: str = "") -> Message:
        """A tool call as the editor knows it in the end: all its updates put together."""
        merged: Message = {}
        for update in self.updates():
            if update["sessionUpdate"] in ("tool_call", "tool_call_update") and (
                not call_id or update["toolCallId"] == call_id
            ):
                merged |= update
        return merged


def choose(kind: str) -> Answer:
    """Answer a permission request with its first option of this kind."""

    def answer(params: Message) -> Message:
        option = next(o for o in params["options"] if o["kind"] == kind)
        return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}

    return answer


def permitting(kind: str = "allow_once") -> dict[str, Answer]:
    """The `answers` of an editor whose person always chooses this."""
    return {"session/request_permission": choose(kind)}
