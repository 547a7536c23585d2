"""The screen: wires the agent's events to the widgets and the keys to the agent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from pointcode_local.complete import MODES, PromptHistory, fuzzy_paths, list_files, parse_slash
from pointcode_local.events import AgentEvent, Answer, ErrorRaised, PermissionAsked, Prompt, SetMode, ToolFinished
from pointcode_local.frontend import AgentLike, Host, HostError, Progress
from pointcode_local.tui.commands import CommandRunner, Mode
from pointcode_local.tui.composer import Choices, Composer
from pointcode_local.tui.dialogs import Answered, AskPanel, EarlyKey, PermissionPanel, QuestionPanel
from pointcode_local.tui.editor import edit_text
from pointcode_local.tui.status import ActivityLine, QueueLine, StatusLine, TodoPanel, prefill_text, progress_text
from pointcode_local.tui.story import NoticeKind, Record, Story
from pointcode_local.tui.theme import DARK, LIGHT, choose_theme, no_color
from pointcode_local.tui.transcript import Transcript
from pointcode_local.tui.welcome import Welcome
from pointcode_local.usershell import note_for_model, run_user_shell

FRAME_S = 1 / 30
QUIT_WITHIN_S = 2.0
FILES_FRESH_S = 10.0
PLACEHOLDER = "What shall I do?  @ names a file, / lists commands"
PLACEHOLDER_BUSY = "Enter queues a message, ctrl+s puts it into this turn"
_log = logging.getLogger(__name__)


class PointcodeApp(App[int]):
    """The full-screen interface over one `Host`. `frame_s` 0 and `animate` False make it deterministic for tests."""

    CSS_PATH = "pointcode.tcss"
    TITLE = "pointcode"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", priority=True, show=False),
        Binding("ctrl+q", "leave", priority=True, show=False),
        Binding("shift+tab", "next_mode", priority=True, show=False),
        Binding("ctrl+o", "details", priority=True, show=False),
        Binding("ctrl+t", "plan", priority=True, show=False),
        Binding("ctrl+g", "editor", priority=True, show=False),
        Binding("pageup", "page(-1)", priority=True, show=False),
        Binding("pagedown", "page(1)", priority=True, show=False),
        Binding("ctrl+home", "to_edge(-1)", priority=True, show=False),
        Binding("ctrl+end", "to_edge(1)", priority=True, show=False),
        Binding("escape", "stop", show=False),
    ]

    def __init__(
        self,
        host: Host,
        *,
        prompt: str = "",
        theme: str = "auto",
        history_path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        frame_s: float = FRAME_S,
        animate: bool = True,
    ) -> None:
        super().__init__(ansi_color=True if no_color() else None)
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = choose_theme(theme)
        self.story = Story()
        self.agent: AgentLike | None = None
        self._host = host
        self._first_prompt = prompt
        self._clock = clock
        self._frame_s = frame_s
        self._history = PromptHistory(history_path)
        self._commands = CommandRunner(self, host)
        self._inbox: list[AgentEvent] = []
        self._mail = asyncio.Event()
        self._painting = False
        self._waiting_prompts: list[str] = []
        self._turn: asyncio.Task[None] | None = None
        self._user_shell: asyncio.Task[None] | None = None
        self._notes: list[str] = []  # for the model, once the turn is over
        self._n_user_shells = 0
        self._progress: Progress | None = None
        self._opening = False
        self._quit_asked_at: float | None = None
        self._files: tuple[float, list[str]] = (float("-inf"), [])
        self._panel: AskPanel | None = None
        self._welcome = Welcome()
        self._transcript = Transcript(self._welcome)
        self._activity = ActivityLine(clock, animate=animate)
        self._todo = TodoPanel()
        self._queue = QueueLine()
        self._choices = Choices()
        self._composer = Composer(self._choices, self._history, host.commands)
        self._composer.cursor_blink = animate
        self._status = StatusLine()

    # ----------------------------------------------------------------- set-up
    def compose(self) -> ComposeResult:
        """Conversation above, everything that is about now below."""
        yield self._transcript
        with Vertical(id="bottom"):
            yield self._activity
            yield self._todo
            yield self._queue
            yield self._choices
            yield self._composer
        yield self._status

    async def on_mount(self) -> None:
        """Show the screen at once; the model opens behind it."""
        self._composer.focus()
        self._welcome.show(self._host.info)
        await self._transcript.show(self.story.records)
        self._refresh_now()
        self.run_worker(self._paint(), exclusive=False, name="painter")
        self.run_worker(self._open(), name="open")

    async def _open(self) -> None:
        await self._with_progress("Opening the model", self._host.open)
        if self.agent is None:
            return
        await self.replay()
        prompts = [self._first_prompt, *self._waiting_prompts]
        self._waiting_prompts.clear()
        self._queue.set_queue([])
        for prompt in prompts:
            if prompt.strip():
                self.submit(prompt)

    async def open_model(self, name: str) -> None:
        """Go on with another model; raises nothing, a failure becomes a notice."""

        def open_it(on_progress: Callable[[Progress], None]) -> Coroutine[Any, Any, AgentLike]:
            return self._host.use_model(name, on_progress)

        await self._with_progress(f"Opening {name}", open_it)

    async def _with_progress(
        self, text: str, open_it: Callable[[Callable[[Progress], None]], Coroutine[Any, Any, AgentLike]]
    ) -> None:
        loop = asyncio.get_running_loop()

        def on_progress(progress: Progress) -> None:  # from any thread
            loop.call_soon_threadsafe(self._show_progress, progress)

        self._opening = True
        self._show_progress(Progress(text))
        try:
            self.use_agent(await open_it(on_progress))
        except HostError as error:
            await self.note(str(error), "error")
        except Exception as error:  # noqa: BLE001  (front-end loop: the screen says what went wrong)
            _log.exception("opening failed")
            await self.note(f"{type(error).__name__}: {error}", "error")
        finally:
            self._opening = False
            self._progress = None
            self._refresh_now()

    def _show_progress(self, progress: Progress) -> None:
        if self._opening:
            self._progress = progress
            self._refresh_now()

    def use_agent(self, agent: AgentLike) -> None:
        """The agent of the session that is open now."""
        self.agent = agent
        self._welcome.show(self._host.info)

    async def replay(self) -> None:
        """Show the open session from its log."""
        self.story = Story()
        for event in self._host.history():
            self.story.apply(event)
        self.story.in_turn = False
        self.story.asks.clear()
        await self._transcript.show(self.story.records)
        self._refresh_now()

    # ------------------------------------------------------------ event stream
    @property
    def is_busy(self) -> bool:
        """Whether a turn runs."""
        return self._turn is not None

    @property
    def is_settled(self) -> bool:
        """Whether everything that arrived is on the screen."""
        return not self._inbox and not self._painting

    def post_event(self, event: AgentEvent) -> None:
        """Take one event; it is drawn with the next frame."""
        self._inbox.append(event)
        self._mail.set()

    async def _paint(self) -> None:
        """Draw what arrived, at most once a frame, and never use more than half of the event loop's time."""
        while True:
            await self._mail.wait()
            self._painting = True
            self._mail.clear()
            batch, self._inbox = self._inbox, []
            started = time.perf_counter()
            touched = [record for event in batch for record in self.story.apply(event)]
            await self._draw(touched)
            self._painting = False
            await asyncio.sleep(max(self._frame_s, (time.perf_counter() - started) if self._frame_s else 0))

    async def _draw(self, touched: list[Record]) -> None:
        await self._transcript.sync(touched)
        await self._sync_panel()
        self._refresh_now()

    async def note(self, text: str, kind: NoticeKind = "info") -> None:
        """Add a line from the program itself."""
        await self._transcript.sync(self.story.note(text, kind))

    def _refresh_now(self) -> None:
        self._composer.placeholder = PLACEHOLDER_BUSY if self.is_busy else PLACEHOLDER
        self._activity.set_activity(self._activity_text())
        self._todo.set_items(self.story.todo)
        self._queue.set_queue([*self._waiting_prompts, *self.story.queued])
        self._status.show(self._host.info, self.story)

    def _activity_text(self) -> str:
        if self._progress is not None:
            return progress_text(self._progress)
        if self._panel is not None:
            return ""
        if self.story.prefill is not None and self.story.in_turn:
            return f"Reading the prompt  {prefill_text(self.story.prefill)}"
        if self.story.in_turn or self.is_busy:
            return f"{self.story.doing or 'Working'}…"
        return "Running your command…" if self._user_shell else ""

    async def _consume(self, stream: AsyncIterator[AgentEvent]) -> None:
        try:
            async for event in stream:
                self.post_event(event)
        except Exception as error:  # noqa: BLE001  (front-end loop: whatever fails in a turn, the screen stays)
            _log.exception("the turn failed")
            self.post_event(ErrorRaised(f"{type(error).__name__}: {error}"))

    async def _play(self, agent: AgentLike, prompt: str) -> None:
        await self._consume(agent.run(prompt))
        self._turn = None
        if waiting := agent.take_queue():  # after a cancel: back into the editor, nothing is lost
            self._composer.set_text("\n".join([*waiting, *filter(None, [self._composer.text])]))
            self.story.queued.clear()
        for note in self._notes:
            agent.note(note)
        self._notes.clear()
        self._mail.set()

    async def _noted(self, stream: AsyncIterator[AgentEvent]) -> AsyncIterator[AgentEvent]:
        """The same events; the model learns of the command's end, though not in the middle of a turn."""
        async for event in stream:
            yield event
            if isinstance(event, ToolFinished):
                self._notes.append(note_for_model(event))
        if self.agent is not None and self._turn is None:
            for note in self._notes:
                self.agent.note(note)
            self._notes.clear()

    async def _play_user_shell(self, command: str) -> None:
        self._n_user_shells += 1
        stream = run_user_shell(command, self._host.info.cwd, f"user-shell-{self._n_user_shells}")
        try:
            await self._consume(self._noted(stream))
        finally:
            self._user_shell = None
            self._mail.set()

    # -------------------------------------------------------------- the person
    def submit(self, text: str, *, steer: bool = False) -> None:
        """A message, a `/` command or a `!` command."""
        self._transcript.anchor()
        if (command := parse_slash(text, self._host.commands())) is not None:
            self.run_worker(self._commands.run(*command))
        elif text.startswith("!") and text[1:].strip():
            self._start_user_shell(text[1:].strip())
        else:
            self.send_prompt(text, steer=steer)

    def send_prompt(self, text: str, *, steer: bool = False) -> None:
        """A message for the model, whatever it begins with."""
        if self.agent is None:
            self._wait_for_model(text)
        elif self._turn is not None:
            self.agent.send(Prompt(text, steer=steer))
        else:
            self._turn = asyncio.create_task(self._play(self.agent, text))
            self._refresh_now()

    def _wait_for_model(self, text: str) -> None:
        if self._opening:
            self._waiting_prompts.append(text)
            self._refresh_now()
        else:
            self._composer.set_text(text)
            self.notify("No model is open. /model opens one, /quit leaves.", severity="warning", markup=False)

    def _start_user_shell(self, command: str) -> None:
        if self._user_shell is None:
            self._user_shell = asyncio.create_task(self._play_user_shell(command))
        else:
            self.notify("A command of yours is still running; esc stops it.", markup=False)

    def on_composer_submitted(self, message: Composer.Submitted) -> None:
        """Enter in the composer."""
        self.submit(message.text, steer=message.steer)

    def on_composer_paths_wanted(self, message: Composer.PathsWanted) -> None:
        """`@` in the composer: look for files beside the event loop."""
        self.run_worker(self._find_paths(message.query), exclusive=True, group="paths")

    async def _find_paths(self, query: str) -> None:
        read_at, files = self._files
        if self._clock() - read_at > FILES_FRESH_S:
            files = await asyncio.to_thread(list_files, self._host.info.cwd)
            self._files = (self._clock(), files)
        self._composer.offer_paths(query, await asyncio.to_thread(fuzzy_paths, query, files))

    async def _sync_panel(self) -> None:
        """Show the oldest open question, or give the keys back to the composer."""
        ask = next(iter(self.story.asks.values()), None)
        if self._panel is not None and (ask is None or self._panel.call_id != ask.call_id):
            panel, self._panel = self._panel, None
            await panel.remove()
            self._composer.focus()
        if ask is not None and self._panel is None:
            kind = (
                PermissionPanel(ask, self._clock)
                if isinstance(ask, PermissionAsked)
                else QuestionPanel(ask, self._clock)
            )
            self._panel = kind
            await self.query_one("#bottom").mount(kind, before=self._choices)

    async def on_answered(self, message: Answered) -> None:
        """The person answered a panel."""
        if self.agent is not None and self.story.asks.pop(message.call_id, None) is not None:
            self.agent.send(Answer(message.call_id, message.text))
        await self._sync_panel()
        self._refresh_now()

    def on_early_key(self, message: EarlyKey) -> None:
        """A letter typed before the panel could be read belongs to the composer."""
        self._composer.insert(message.character)

    # ------------------------------------------------------------------ actions
    def action_stop(self) -> None:
        """Escape: stop the turn, or the person's own command."""
        if self._turn is not None and self.agent is not None:
            self.agent.cancel()
        elif self._user_shell is not None:
            self._user_shell.cancel()

    async def action_interrupt(self) -> None:
        """Ctrl-C: copy a selection; else stop, or clear the composer; a second one within two seconds quits."""
        if selected := self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            self.notify("Copied", timeout=2)
            return
        now = self._clock()
        if self._quit_asked_at is not None and now - self._quit_asked_at < QUIT_WITHIN_S:
            await self.action_leave()
            return
        self._quit_asked_at = now
        self.action_stop()
        if self.focused is self._composer and self._composer.text:
            self._composer.set_text("")
        self.notify("Press Ctrl-C again to quit", timeout=QUIT_WITHIN_S)

    async def action_leave(self) -> None:
        """Stop what runs and leave."""
        self.action_stop()
        if self._turn is not None:
            await asyncio.wait({self._turn}, timeout=QUIT_WITHIN_S)
        self.exit(0 if self.agent is not None or self._opening else 1)

    def set_mode(self, mode: Mode) -> None:
        """Change the permission mode from the next call on."""
        if self.agent is None:
            self.notify("The model is not open yet.", markup=False)
            return
        self.agent.send(SetMode(mode))
        self.story.mode = mode
        self._refresh_now()

    def action_next_mode(self) -> None:
        """Shift-Tab: the next mode in the list."""
        mode = self.story.mode or self._host.info.mode
        at = MODES.index(mode) if mode in MODES else -1
        self.set_mode(MODES[(at + 1) % len(MODES)])

    def action_details(self) -> None:
        """Ctrl-O: unfold everything, or fold it again."""
        self._transcript.toggle_details()

    def action_plan(self) -> None:
        """Ctrl-T: all steps of the plan, or only the present one."""
        self._todo.toggle()

    def action_page(self, direction: int) -> None:
        """Scroll the conversation by a screen."""
        if direction < 0:
            self._transcript.scroll_page_up(animate=False)
        else:
            self._transcript.scroll_page_down(animate=False)

    def action_to_edge(self, direction: int) -> None:
        """Go to the first mounted line, or to the end, which is then followed again."""
        if direction < 0:
            self._transcript.scroll_home(animate=False)
        else:
            self._transcript.anchor()

    def action_editor(self) -> None:
        """Ctrl-G: write the message in $VISUAL or $EDITOR."""
        with self.suspend():
            text = edit_text(self._composer.text)
        self.refresh(layout=True)
        if text is not None:
            self._composer.set_text(text)

    async def on_key(self, event: events.Key) -> None:
        """Ctrl-D with nothing written quits; a letter typed while a card has the focus goes to the composer."""
        if event.key == "ctrl+d" and not self._composer.text:
            await self.action_leave()
        elif event.is_printable and event.character and self._panel is None and self.focused is not self._composer:
            self._composer.focus()
            self._composer.insert(event.character)
