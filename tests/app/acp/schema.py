"""Checks every message of the agent against the protocol's schema, as the SDK's models hold it.

A message must come back from its model as it was: a field that the model drops, mends or does not know is a fault.
"""

from __future__ import annotations

from typing import Any

from acp import schema
from pydantic import BaseModel

RESULTS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
    "session/prompt": schema.PromptResponse,
}
CALLS: dict[str, type[BaseModel]] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
    "fs/read_text_file": schema.ReadTextFileRequest,
    "fs/write_text_file": schema.WriteTextFileRequest,
    "terminal/create": schema.CreateTerminalRequest,
    "terminal/output": schema.TerminalOutputRequest,
    "terminal/wait_for_exit": schema.WaitForTerminalExitRequest,
    "terminal/kill": schema.KillTerminalRequest,
    "terminal/release": schema.ReleaseTerminalRequest,
    "elicitation/create": schema.CreateFormSessionElicitationRequest,
}


# Kinds of update that the SDK has no models of: their fields. `tests/acp_node` checks them against the whole schema.
NEWER = {
    "notice": {"sessionUpdate", "severity", "title"},
    "compaction_update": {"sessionUpdate", "compactionId", "status", "summary", "error"},
}


def check(message: dict[str, Any], method: str) -> None:
    """One message of the agent; `method` is its own, or that of the request which it answers."""
    assert message["jsonrpc"] == "2.0"
    if "method" in message:
        assert set(message) <= {"jsonrpc", "id", "method", "params"}
        update = message["params"].get("update", {})
        if update.get("sessionUpdate") in NEWER:
            assert set(message["params"]) == {"sessionId", "update"} and set(update) <= NEWER[update["sessionUpdate"]]
            return
        _check_body(CALLS[method], message["params"])
    elif "error" in message:
        assert set(message) == {"jsonrpc", "id", "error"}
        _check_body(schema.Error, message["error"])
    else:
        assert set(message) == {"jsonrpc", "id", "result"}
        if method in RESULTS:
            _check_body(RESULTS[method], message["result"])


def _check_body(model: type[BaseModel], body: Any) -> None:
    again = model.model_validate(body).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == body, f"{model.__name__} reads {body} as {again}"
