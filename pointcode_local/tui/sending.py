"""What the person sends: it begins at once, or waits for a model to open, the turn to end, or what was sent before.

Prompts sent during a turn wait inside the agent; all else that waits does so here, in the order in which it was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pointcode_local.complete import parse_slash
from pointcode_local.events import Answer, Prompt
from pointcode_local.frontend import Host
from pointcode_local.tui.commands import CommandRunner
from pointcode_local.tui.dialogs import ALL_EDITS, Answered
from pointcode_local.tui.turns import Turns

if TYPE_CHECKING:
    from pointcode_local.tui.app import PointcodeApp

# commands that need neither a model nor the end of a turn
AT_ONCE = ("help", "copy", "mode", "status", "theme", "quit")
AFTER_TURN = ("clear", "compact", "resume", "undo", "redo", "model")


class Sending:
    """`texts` are the messages and commands that wait; each begins when the one before has ended."""

    def __init__(self, app: PointcodeApp, host: Host, turns: Turns, *, rings: bool) -> None:
        self.texts: list[str] = []
        self._app = app
        self._host = host
        self._turns = turns
        self._commands = CommandRunner(app, host, turns, self.send_prompt)
        self._rings = rings
        self._is_going_on = False

    def ring(self) -> None:
        """Call the person back who looks at another window."""
        if self._rings and not self._app.app_focus:
            self._app.bell()

    def submit(self, text: str, *, steer: bool = False) -> None:
        """A message, a `/` command or a `!` command."""
        command = parse_slash(text, self._host.commands())
        steers_now = steer and command is None and self._turns.is_busy
        if not steers_now and self._must_wait(command[0] if command is not None else ""):
            self.texts.append(text)
        elif command is not None:
            self._app.run_worker(self._commands.run(*command))
        else:
            self._send(text, steer=steer)

    def _must_wait(self, command: str) -> bool:
        if command in AT_ONCE:
            return False
        in_order = self._app.is_opening or self._is_going_on or bool(self.texts)
        return in_order or (command in AFTER_TURN and self._turns.is_busy)

    def _send(self, text: str, *, steer: bool = False) -> None:
        if not text.startswith("!") or not text[1:].strip():
            self.send_prompt(text, steer=steer)
        elif not self._turns.start_user_shell(text[1:].strip(), self._host.info.cwd):
            self._app.put_back([text])
            self._app.notify("A command of yours is still running; esc stops it.", markup=False)

    def send_prompt(self, text: str, *, steer: bool = False) -> None:
        """A message for the model, whatever it begins with."""
        agent = self._turns.agent
        if agent is None:
            self._app.put_back([text])
            self._app.notify("No model is open. /model opens one, /quit leaves.", severity="warning", markup=False)
        elif not self._turns.is_busy:
            self._turns.start(agent, agent.run(text))
        else:
            if steer:
                self._app.story.steering.append(text)
            agent.send(Prompt(text, steer=steer))

    def answer(self, answered: Answered) -> None:
        """The person's answer to a question of the turn."""
        if answered.text == ALL_EDITS:
            self._app.set_mode("accept-edits")
        self._turns.send(Answer(answered.call_id, "once" if answered.text == ALL_EDITS else answered.text))

    async def go_on(self) -> None:
        """Begin what waits, one after the other, until something runs that the next one must wait for."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self.texts and not self._turns.is_busy and not self._app.is_opening:
                text = self.texts.pop(0)
                if (command := parse_slash(text, self._host.commands())) is not None:
                    await self._commands.run(*command)
                else:
                    self._send(text)
        finally:
            self._is_going_on = False
            self._app.show_state()

    def turn_ended(self, left: list[str]) -> None:
        """What waits begins; after a stop it goes back into the editor, with the messages `left` in the agent."""
        self._app.put_back([*left, *(self._take() if self._turns.was_stopped else [])])
        self._app.story.nothing_waits()
        if not self.texts:
            self.ring()
        self._app.run_worker(
            self.go_on, group="sending"
        )  # a coroutine of its own would wait for ever in an app that ends

    def take_all(self) -> str:
        """What waits, in the agent and here; it waits no more."""
        in_agent = self._turns.agent.take_queue() if self._turns.agent is not None else []
        taken = [*in_agent, *self._take()]
        self._app.story.nothing_waits()
        self._app.show_state()
        return "\n".join(taken)

    def _take(self) -> list[str]:
        taken, self.texts = self.texts, []
        return taken
