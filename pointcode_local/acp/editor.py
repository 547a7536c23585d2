"""The editor at the other end: what it offers, and the questions that are put to the person through it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    ElicitationFormSessionMode,
    PermissionOption,
    ToolCallUpdate,
)

from pointcode_local.acp.updates import Update
from pointcode_local.acp.wire import Wire

log = logging.getLogger(__name__)
ASK_FAILED = (RequestError, ConnectionError, ValueError)  # refused, gone, or an answer of the wrong form
MAX_RULE_CHARS = 120
NO_ANSWER = "(This editor cannot ask a free question. Put it into your answer, and stop there.)"


@dataclass(slots=True)
class Editor:
    """`capabilities` are known after `initialize`."""

    client: Client
    capabilities: ClientCapabilities
    wire: Wire

    @property
    def extras(self) -> frozenset[str]:
        """Of "compaction" and "notices", the kinds of update that it takes; the SDK has no models of these yet."""
        known = self.wire.session_capabilities
        return frozenset(name for name in ("compaction", "notices") if isinstance(known.get(name), dict))

    @property
    def reads_files(self) -> bool:
        """Whether files may be read through it, unsaved changes included."""
        return bool(self.capabilities.fs and self.capabilities.fs.read_text_file)

    @property
    def writes_files(self) -> bool:
        """Whether files may be written through it."""
        return bool(self.capabilities.fs and self.capabilities.fs.write_text_file)

    @property
    def has_terminals(self) -> bool:
        """Whether commands may run in its terminals."""
        return bool(self.capabilities.terminal)

    async def update(self, session_id: str, update: Update) -> None:
        """Tell it something about a session; an editor that is gone is no error here."""
        try:
            if isinstance(update, dict):
                params = {"sessionId": session_id, "update": update}
                await self.wire.send({"jsonrpc": "2.0", "method": "session/update", "params": params})
            else:
                await self.client.session_update(session_id, update)
        except ConnectionError as error:
            log.debug("an update was not sent: %s", error)

    # ------------------------------------------------------------------------------------------- questions
    async def permit(self, session_id: str, call: ToolCallUpdate, rule: str, *, offers_session: bool) -> str:
        """Put a call to the person: "once", "session", "always" or "deny"; what is no clear yes is a no. The protocol
        has one kind for what is remembered: an editor that goes by kinds alone takes the first, which is "always"."""
        options = [PermissionOption(option_id="once", name="Allow", kind="allow_once")]
        if rule:
            shown = rule if len(rule) <= MAX_RULE_CHARS else rule[: MAX_RULE_CHARS - 1] + "…"
            options.append(PermissionOption(option_id="always", name=f"Always allow {shown}", kind="allow_always"))
            if offers_session:
                name = "Allow for this session"
                options.append(PermissionOption(option_id="session", name=name, kind="allow_always"))
        options.append(PermissionOption(option_id="deny", name="Reject", kind="reject_once"))
        chosen = await self._choose(session_id, call, options)
        return chosen if chosen in {option.option_id for option in options} else "deny"

    async def choose(self, session_id: str, call_id: str, question: str, options: tuple[str, ...]) -> str:
        """Put the model's own question to the person: a form where the editor has those, else the options alone."""
        if self.capabilities.elicitation and self.capabilities.elicitation.form:
            return await self._form(session_id, call_id, question, options)
        if not options:
            return NO_ANSWER
        choices = [PermissionOption(option_id=str(i), name=o, kind="allow_once") for i, o in enumerate(options)]
        choices.append(PermissionOption(option_id="skip", name="Skip", kind="reject_once"))
        call = ToolCallUpdate(tool_call_id=call_id, title=question, kind="think", status="pending")
        chosen = await self._choose(session_id, call, choices)
        return options[int(chosen)] if chosen.isdecimal() and int(chosen) < len(options) else ""

    async def _choose(self, session_id: str, call: ToolCallUpdate, options: list[PermissionOption]) -> str:
        try:
            answer = await self.client.request_permission(session_id, call, options)
        except ASK_FAILED as error:
            log.warning("the editor could not ask for permission: %s", error)
            return ""
        outcome = answer.outcome
        return outcome.option_id if isinstance(outcome, AllowedOutcome) else ""

    async def _form(self, session_id: str, call_id: str, question: str, options: tuple[str, ...]) -> str:
        field = {"type": "string", "title": "Answer", **({"enum": list(options)} if options else {})}
        mode = ElicitationFormSessionMode.model_validate(
            {
                "sessionId": session_id,
                "toolCallId": call_id,
                "requestedSchema": {"type": "object", "properties": {"answer": field}, "required": ["answer"]},
            }
        )
        try:
            response = await self.client.create_elicitation(question, mode)
        except ASK_FAILED as error:
            log.warning("the editor could not show a form: %s", error)
            return ""
        if not isinstance(response, AcceptElicitationResponse):
            return ""
        return str((response.content or {}).get("answer", ""))
