"""A small OpenAI-compatible server that plays a script, for tests of the endpoint model and of the whole program."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer. `calls` are (name, arguments as written); `hold` is waited for before the last chunk."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    finish: str = ""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    breaks: bool = False  # the connection ends before the finish reason
    hold: threading.Event | None = None
    chunks: tuple[dict[str, Any], ...] = ()  # sent as they are instead of the rest
    body: dict[str, Any] | None = None  # sent as plain JSON instead of a stream


Step = Reply | Callable[[dict[str, Any]], Reply]


def tool(name: str, /, **arguments: Any) -> Reply:
    """A reply with one call."""
    return Reply(calls=((name, json.dumps(arguments)),))


@dataclass
class ScriptedServer:
    """Use as a context manager; `url` is the API's root."""

    steps: list[Step]
    context: int = 32_768
    model: str = "scripted"
    about: dict[str, Any] = field(default_factory=dict[str, Any])  # what else it tells of its model
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    gone: threading.Event = field(default_factory=threading.Event)  # a client went away while it was answered

    def __enter__(self) -> ScriptedServer:
        handler = type("Handler", (_Handler,), {"server_script": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def next(self, request: dict[str, Any]) -> Reply:
        """The reply to a request; "Done." when the script is used up."""
        self.requests.append(request)
        step: Step = self.steps.pop(0) if self.steps else Reply("Done.")
        return step if isinstance(step, Reply) else step(request)

    def results(self) -> list[str]:
        """The tool results of the last request."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "tool"]


class _Handler(BaseHTTPRequestHandler):
    server_script: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _json(self, status: int, value: Any, headers: Sequence[tuple[str, str]] = ()) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        script = self.server_script
        entry = {"id": script.model, "max_model_len": script.context, **script.about}
        self._json(200, {"object": "list", "data": [entry]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_script.headers.append({k.lower(): v for k, v in self.headers.items()})
        reply = self.server_script.next(body)
        if reply.status != 200:
            self._json(reply.status, {"error": {"message": reply.text}}, reply.headers)
            return
        if reply.body is not None:
            self._json(200, reply.body)
            return
        try:
            self._stream(reply)
        except (BrokenPipeError, ConnectionResetError):
            self.server_script.gone.set()

    def _send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n")
        self.wfile.flush()

    def _delta(self, finish: str | None = None, **delta: Any) -> None:
        self._send({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in reply.chunks:
            self._send(chunk)
        self._content(reply)
        if reply.hold is not None:
            while not reply.hold.wait(0.02):
                self.wfile.write(b": still here\n\n")
                self.wfile.flush()
        if reply.breaks:
            return
        if not reply.chunks:
            self._delta(reply.finish or ("tool_calls" if reply.calls else "stop"))
        details = {"cached_tokens": 7}
        self._send(
            {"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": details}}
        )
        self.wfile.write(b"data: [DONE]\n\n")

    def _content(self, reply: Reply) -> None:
        for piece in _pieces(reply.reasoning):
            self._delta(reasoning_content=piece)
        for piece in _pieces(reply.text):
            self._delta(content=piece)
        n = len(self.server_script.requests)
        for i, (name, written) in enumerate(reply.calls):
            head = {"index": i, "id": f"call_{n}_{i}", "type": "function", "function": {"name": name, "arguments": ""}}
            self._delta(tool_calls=[head])
            for piece in _pieces(written):
                self._delta(tool_calls=[{"index": i, "function": {"arguments": piece}}])


def _pieces(text: str) -> list[str]:
    size = max(3, len(text) // 20)
    return [text[i : i + size] for i in range(0, len(text), size)]
