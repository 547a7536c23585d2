"""Lines in, lines out: what stands between standard input and output and the protocol's SDK.

The SDK gives no answer to a line that is not JSON and ends on JSON that is not a message. `Wire` answers both as
JSON-RPC 2.0 asks, and passes on messages alone. Reading and writing happen in threads, so an editor that does not read
never stops the agent, and any file descriptor will do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import queue
import threading
from typing import Any, Literal, cast

from pointcode_local.records import to_line
from pointcode_local.tools.byte_lines import ByteLines

log = logging.getLogger(__name__)
MAX_LINE_BYTES = 64 << 20
MAX_BACKLOG_BYTES = 8 << 20  # written lines that the editor has not read; above it senders wait
READ_BYTES = 1 << 16
LAST_WRITES_S = 2.0  # how long closing waits for the editor to read
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
# Of the protocol's first version, but not known to the SDK's router: they pass as extensions.
PASSED_AS_EXTENSION = frozenset({"session/delete", "$/cancel_request"})
NOTIFICATIONS = frozenset({"session/cancel"})
End = Literal["", "input", "output", "stopped"]


class BadMessage(Exception):
    """A line that is no message of the protocol; `id` is the request it belongs to, as far as that can be known."""

    def __init__(self, code: int, reason: str, id: Any = None) -> None:  # the protocol's name
        super().__init__(reason)
        self.code, self.id = code, id


def parse(line: bytes) -> dict[str, Any]:
    """The message of one line. Raises BadMessage."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadMessage(PARSE_ERROR, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadMessage(INVALID_REQUEST, "a message must be one JSON object (batches are not part of the protocol)")
    message = cast("dict[str, Any]", value)
    known_id = message.get("id") if _is_id(message.get("id")) else None
    if message.get("jsonrpc") != "2.0":
        raise BadMessage(INVALID_REQUEST, 'jsonrpc must be "2.0"', known_id)
    if "id" in message and not _is_id(message["id"]):
        raise BadMessage(INVALID_REQUEST, "id must be a string, a whole number or null")
    if "method" in message:
        return _call(message)
    if "id" not in message or not ("result" in message or "error" in message):
        raise BadMessage(INVALID_REQUEST, "neither a call (method) nor an answer (id with result or error)", known_id)
    return _answer(message)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _is_id(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _call(message: dict[str, Any]) -> dict[str, Any]:
    method = message["method"]
    if not isinstance(method, str):
        raise BadMessage(INVALID_REQUEST, "method must be a string", message.get("id"))
    if method in PASSED_AS_EXTENSION:
        message["method"] = f"_{method}"
    params = message.get("params")
    if isinstance(params, dict):  # the SDK would pass its keys as arguments of the same names
        message["params"] = {name: value for name, value in params.items() if name != "_meta"}
    return message


def _table(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _is_ignored(message: dict[str, Any]) -> bool:
    """A notification that nobody here knows: there is no answer to one, and nothing to do."""
    method = message.get("method")
    return method is not None and "id" not in message and method not in NOTIFICATIONS and not method.startswith("_")


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    error = message.get("error")
    if "error" in message and not isinstance(error, dict):
        message["error"] = {"code": INTERNAL_ERROR, "message": str(error)}
    return message


def encode(message: dict[str, Any]) -> bytes:
    """One line; what JSON cannot hold (infinite numbers, exceptions in error data) becomes null or text."""
    _shorten_error(message)
    try:
        line = to_line(message)
    except (TypeError, ValueError):
        return to_line(_plain(message))
    return to_line(_plain(message)) if b"NaN" in line or b"Infinity" in line else line


def _shorten_error(message: dict[str, Any]) -> None:
    """Say what is wrong with parameters in a sentence; leave out `data` where there is none."""
    error = message.get("error")
    if not isinstance(error, dict):
        return
    data: Any = error.get("data")
    if data is None:
        error.pop("data", None)
    elif error.get("code") == INVALID_PARAMS and isinstance(data, dict) and isinstance(data.get("errors"), list):
        faults = [{"at": _place(fault), "problem": str(fault.get("msg", ""))} for fault in data["errors"][:20]]
        error["data"] = {"errors": faults}
        if faults:
            error["message"] = f"Invalid params: {faults[0]['at']}: {faults[0]['problem']}"


def _place(fault: dict[str, Any]) -> str:
    return ".".join(map(str, fault.get("loc", ()))) or "params"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


class Wire:
    """The SDK's transport over two file descriptors. `end` says why it ended: input, output, or `stop` was called."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._in: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._backlog_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._unanswered: dict[Any, str] = {}  # requests that came -> the session of a prompt, else ""
        self._answered = asyncio.Event()
        self.session_capabilities: dict[str, Any] = {}  # what the editor said in `initialize`; the SDK knows only some
        self.end: End = ""
        self._writer = threading.Thread(target=self._write, args=(fd_out,), name="acp writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, args=(fd_in,), name="acp reader", daemon=True).start()

    # ------------------------------------------------------------------------------------------- the SDK's side
    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end. Lines that are none are answered here."""
        while not self.end:
            line = await self._in.get()
            if line is None:
                break
            try:
                message = parse(line)
                if _is_ignored(message):
                    log.debug("an unknown notification is ignored: %s", message["method"])
                    continue
                self._note(message)
                return message
            except BadMessage as error:
                log.warning("a line from the editor is no message: %s", error)
                kind = "Parse error" if error.code == PARSE_ERROR else "Invalid request"
                fault = {"code": error.code, "message": f"{kind}: {error}"}
                await self._put({"jsonrpc": "2.0", "id": error.id, "error": fault})
        self._finish("input")
        return None

    def _note(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            params = _table(message, "params")
            if message["method"] == "initialize":
                self.session_capabilities = _table(_table(params, "clientCapabilities"), "session")
            session = params.get("sessionId") if message["method"] == "session/prompt" else ""
            self._unanswered[message["id"]] = session if isinstance(session, str) else ""

    def session_of_prompt(self, request_id: Any) -> str:
        """The session whose prompt this unanswered request is; "" for any other."""
        return self._unanswered.get(request_id, "") if isinstance(request_id, str | int) else ""

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message; it is in line when this returns. Waits while the editor is far behind."""
        if "method" not in message:
            self._unanswered.pop(message.get("id"), None)
            self._answered.set()
        await self._put(message)

    async def _put(self, message: dict[str, Any]) -> None:
        line = encode(message)
        self._backlog_bytes += len(line)
        if self._backlog_bytes > MAX_BACKLOG_BYTES:
            self._drained.clear()
        self._out.put(line)
        if not self._drained.is_set() and not self.end:
            await self._drained.wait()

    async def settle(self, timeout_s: float) -> None:
        """Wait until every request that came has its answer, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._unanswered:
                    self._answered.clear()
                    await self._answered.wait()

    async def close(self) -> None:
        """Write what waits, as far as the editor reads it."""
        self._out.put(None)
        await asyncio.to_thread(self._writer.join, LAST_WRITES_S)

    def stop(self) -> None:
        """End as if the input had ended (signals)."""
        self._finish("stopped")

    def _finish(self, reason: End) -> None:
        self.end = self.end or reason
        self._in.put_nowait(None)
        self._drained.set()

    # ------------------------------------------------------------------------------------------- threads
    def _post(self, call: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _read(self, fd: int) -> None:
        lines = ByteLines(MAX_LINE_BYTES)
        with contextlib.suppress(OSError):
            os.set_blocking(fd, True)
        while True:
            try:
                data = os.read(fd, READ_BYTES)
            except OSError:
                data = b""
            for line in lines.feed(data) if data else [lines.rest()]:
                if line.strip():
                    self._post(self._in.put_nowait, line.strip())
            if not data:
                self._post(self._in.put_nowait, None)
                return

    def _write(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            os.set_blocking(fd, True)
        while (line := self._out.get()) is not None:
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(fd, view) :]
            except OSError:  # nobody reads any more
                self._post(self._finish, "output")
                return
            self._post(self._written, len(line))

    def _written(self, n_bytes: int) -> None:
        self._backlog_bytes -= n_bytes
        if self._backlog_bytes <= MAX_BACKLOG_BYTES // 2:
            self._drained.set()
