"""The screen: wires the agent's events to the widgets and the keys to the agent."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll

from pointcode_local.complete import PathFinder, PromptHistory
from pointcode_local.events import MODES, AgentEvent, FileDiff, Mode, SetMode, TurnStarted
from pointcode_local.frontend import AgentLike, Host
from pointcode_local.jobcontrol import NO_SHELL, stop_for_shell
from pointcode_local.render import one_line
from pointcode_local.tui.bottom import Bottom
from pointcode_local.tui.composer import Choices, Composer
from pointcode_local.tui.dialogs import Answered, EarlyKey
from pointcode_local.tui.driver import TerminalDriver
from pointcode_local.tui.editor import edit_text
from pointcode_local.tui.engine_screen import EngineScreen
from pointcode_local.tui.feed import Feed
from pointcode_local.tui.firstrun import FirstRun
from pointcode_local.tui.keys import KEYS
from pointcode_local.tui.meter import SAMPLE_S, Meter
from pointcode_local.tui.opening import Opening
from pointcode_local.tui.question import OpenQuestion
from pointcode_local.tui.scrolling import MainScreen
from pointcode_local.tui.sending import Sending
from pointcode_local.tui.status import StatusLine, progress_text, title_text, turn_text
from pointcode_local.tui.story import NoticeKind, Story
from pointcode_local.tui.theme import THEMES, choose_theme, no_color
from pointcode_local.tui.transcript import Transcript
from pointcode_local.tui.turns import Turns
from pointcode_local.tui.welcome import Welcome

FRAME_S = 1 / 30
QUIT_WITHIN_S = 2.0


class PointcodeApp(App[int]):
    """The full-screen interface over one `Host`. `frame_s` 0 and `animate` False make it deterministic for tests."""

    CSS_PATH = "pointcode.tcss"
    TITLE = "pointcode"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = KEYS

    def __init__(
        self,
        host: Host,
        *,
        prompt: str = "",
        theme: str = "auto",
        history_path: Path | None = None,
        vi_keys: bool = False,
        bell: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        frame_s: float = FRAME_S,
        animate: bool = True,
    ) -> None:
        super().__init__(ansi_color=True if no_color() else None)
        for known in THEMES.values():
            self.register_theme(known)
        self.theme = choose_theme(theme)
        self.story = Story()
        self._host = host
        self._clock = clock
        self.wall_clock = wall_clock
        self._is_live = animate
        self._feed = Feed(self._draw, frame_s)
        self._turns = Turns(self._feed, lambda left: self._sending.turn_ended(left))
        self._sending = Sending(self, host, self._turns, rings=bell)
        self._meter = Meter(clock)
        self._sending.texts += [prompt] if prompt.strip() else []
        self._first_mode: Mode | None = None  # chosen before there was an agent to tell
        self._opening = Opening(self.show_state, lambda text: self.note(text, "error"))
        self._quit_asked_at: float | None = None
        self._paths = PathFinder(lambda: host.info.cwd, clock)
        self._welcome = Welcome()
        self._transcript = Transcript(self._welcome)
        self._choices = Choices()
        self._composer = Composer(
            self._choices, PromptHistory(history_path), host.commands, self._sending.take_all, vi_keys=vi_keys
        )
        self._composer.cursor_blink = animate
        self._bottom = Bottom(self._choices, self._composer, clock, animate=animate)
        self._question = OpenQuestion(self._bottom, self._choices, self._composer, clock, self._announce_question)
        self._status = StatusLine()

    # ----------------------------------------------------------------- set-up
    def get_default_screen(self) -> MainScreen:
        """The screen with the conversation."""
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        """Conversation above, everything that is about now below."""
        yield self._transcript
        yield self._transcript.below
        yield self._bottom
        yield self._status

    async def on_mount(self) -> None:
        """Show the screen at once; the model opens behind it."""
        self.app_resume_signal.subscribe(self, self.refresh_all)
        self._composer.focus()
        self._welcome.show(self._host.info)
        await self._transcript.show(self.story.records)
        self.show_state()
        self.run_worker(self._feed.run(), exclusive=False, name="painter")
        self.run_worker(self._open(), name="open")
        if self._is_live:
            self.set_interval(SAMPLE_S, self._sample)

    @property
    def agent(self) -> AgentLike | None:
        """The agent of the session that is open; None while none is."""
        return self._turns.agent

    @property
    def mode(self) -> str:
        """The permission mode."""
        return self.story.mode or self._host.info.mode

    async def _open(self) -> None:
        if (look := await self._host.first_look()) is not None:
            if not await self.push_screen_wait(FirstRun(look, self._clock)):
                self.exit(0)
                return
            self._host.note_first_look_seen()
        agent = await self._opening.run("Opening the model", self._host.open)
        if agent is None:
            self.put_back([self._sending.take_all()])
            return
        self.use_agent(agent)
        gc.freeze()  # else each full collection looks at all the libraries again: 40 ms, and 200 with torch
        await self.replay()
        await self._sending.go_on()

    async def open_model(self, name: str) -> None:
        """Go on with another model; raises nothing, a failure becomes a notice."""
        agent = await self._opening.run(f"Opening {name}", lambda on_progress: self._host.use_model(name, on_progress))
        if agent is not None:
            self.use_agent(agent)
            await self.note(
                f"The model is now {one_line(name)}. To keep it: pointcode config set model {one_line(name)}"
            )
        await self._sending.go_on()

    def use_agent(self, agent: AgentLike) -> None:
        """The agent of the session that is open now."""
        self._turns.agent = agent
        if self._first_mode is not None:
            agent.send(SetMode(self._first_mode))
            self._first_mode = None
        self._look_at_engine()
        self._welcome.show(self._host.info)

    async def replay(self) -> None:
        """Show the open session from its log."""
        self.story = Story()
        for event in self._host.history():
            self.story.apply(event)
        self.story.in_turn, self.story.mode = False, ""  # the mode is that of this program, not the one of then
        self.story.asks.clear()
        await self._transcript.show(self.story.records)
        self.show_state()

    # ------------------------------------------------------------ event stream
    @property
    def is_busy(self) -> bool:
        """Whether a turn runs."""
        return self._turns.is_busy

    @property
    def is_opening(self) -> bool:
        """Whether a model is being opened, or about to be."""
        return self._opening.is_under_way

    @property
    def is_settled(self) -> bool:
        """Whether everything that arrived is on the screen."""
        return self._feed.is_settled

    async def _draw(self, batch: list[AgentEvent]) -> None:
        touched = [record for event in batch for record in self.story.apply(event)]
        if any(isinstance(event, TurnStarted) for event in batch):
            self._bottom.turn_started()
        await self._transcript.sync(touched)
        await self._show_question()
        self.show_state()

    async def note(self, text: str, kind: NoticeKind = "info") -> None:
        """Add a line from the program itself."""
        await self._transcript.sync(self.story.note(text, kind))

    async def show_changes(self, diffs: Sequence[FileDiff]) -> None:
        """Add what the session changed."""
        if diffs:
            await self._transcript.sync(self.story.show_changes(tuple(diffs)))
        else:
            await self.note("No changes in this session.")

    def show_state(self) -> None:
        """Draw the lines around the composer from the present state."""
        waiting, doing = self._sending.texts, self._activity_text()
        can_stop = self.is_busy or self._turns.in_user_shell
        self._bottom.show(self.story, waiting, doing, is_busy=self.is_busy, can_stop=can_stop)
        self._status.show(self._host.info, self.story, self._meter)
        if isinstance(self._driver, TerminalDriver):
            self._driver.set_title(title_text(self._host.info, self.story))

    def _activity_text(self) -> str:
        if self._opening.progress is not None:
            return progress_text(self._opening.progress)
        if self._question.panel is not None:
            return ""
        command = "Running your command…" if self._turns.in_user_shell else ""
        return turn_text(self.story, is_busy=self.is_busy) or command

    def put_back(self, texts: Sequence[str]) -> None:
        """Messages that were not read go back into the editor, before what is being written; nothing is lost."""
        if any(texts):
            self._composer.set_text("\n".join(filter(None, [*texts, self._composer.text])))
        self.show_state()

    def _look_at_engine(self) -> None:
        self._meter.look(self._host.engine())

    def _sample(self) -> None:
        """Now and then: the speed while a turn runs, and background commands that have ended, in the status line."""
        if self.is_busy:
            self._look_at_engine()
        self._status.show(self._host.info, self.story, self._meter)

    def show_engine(self) -> None:
        """The engine screen; what the memory gives is measured the first time, while nothing runs."""
        trace = self._host.last_trace()
        self.push_screen(EngineScreen(self._meter, self._look_at_engine, trace, animate=self._is_live))
        self.run_worker(self._measure(), group="measure")

    async def _measure(self) -> None:
        await self._host.measure_memory()
        if isinstance(self.screen, EngineScreen):
            self.screen.refresh_figures()

    # -------------------------------------------------------------- the person
    def submit(self, text: str, *, steer: bool = False) -> None:
        """A message, a `/` command or a `!` command."""
        self._transcript.anchor()
        self._sending.submit(text, steer=steer)
        self.show_state()

    def on_composer_submitted(self, message: Composer.Submitted) -> None:
        """Enter in the composer."""
        self.submit(message.text, steer=message.steer)

    def on_composer_paths_wanted(self, message: Composer.PathsWanted) -> None:
        """`@` in the composer: look for files beside the event loop."""
        self.run_worker(self._find_paths(message.query), exclusive=True, group="paths")

    async def _find_paths(self, query: str) -> None:
        self._composer.offer_paths(query, await self._paths.find(query))

    async def _show_question(self) -> None:
        await self._question.show(next(iter(self.story.asks.values()), None), self.mode)

    def _announce_question(self) -> None:
        self._sending.ring()
        if self.screen is not self._bottom.screen:
            self.notify("The model waits for your answer: esc goes back to it.", markup=False)

    async def on_answered(self, message: Answered) -> None:
        """The person answered a panel."""
        if self.story.asks.pop(message.call_id, None) is not None:
            self._sending.answer(message)
        await self._show_question()
        self.show_state()

    def on_early_key(self, message: EarlyKey) -> None:
        """What is typed before a panel can be read, or over the first screen, belongs to the composer."""
        self._composer.add_text(message.character)
        if message.and_all_others:
            self._composer.focus()

    def on_text_area_changed(self) -> None:
        """The message in the composer is another one now."""
        self._question.message_changed()

    def on_composer_answer_wanted(self) -> None:
        """Tab in the composer: the open question has the keys, whatever has been written."""
        self._question.take_keys()

    # ------------------------------------------------------------------ actions
    def action_stop(self) -> None:
        """Escape: stop the turn, or the person's own command."""
        self._turns.stop()

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
        if self.is_busy or self._turns.in_user_shell:
            self.action_stop()
        elif self.focused is self._composer and self._composer.text:
            self._composer.set_text("")
        self.notify("Press Ctrl-C again to quit", timeout=QUIT_WITHIN_S)

    async def end_turn(self) -> None:
        """Stop what runs, and let it write down that it was stopped."""
        self._turns.stop()
        await self._turns.wait(QUIT_WITHIN_S)

    async def action_leave(self) -> None:
        """Stop what runs and leave."""
        await self.end_turn()
        self.exit(0 if self.agent is not None or self._opening.is_under_way else 1)

    def set_mode(self, mode: Mode) -> None:
        """Change the permission mode from the next call on."""
        if self.agent is None:
            self._first_mode = mode
        else:
            self.agent.send(SetMode(mode))
        self.story.mode = mode
        self.show_state()

    def action_next_mode(self) -> None:
        """Shift-Tab: the next mode in the list."""
        at = MODES.index(self.mode) if self.mode in MODES else -1
        self.set_mode(MODES[(at + 1) % len(MODES)])

    def action_details(self) -> None:
        """Ctrl-O: unfold everything, or fold it again."""
        self._transcript.toggle_details()

    def action_plan(self) -> None:
        """Ctrl-T: all steps of the plan, or only the present one."""
        self._bottom.toggle_plan()

    def action_page(self, direction: int) -> None:
        """Scroll by a screen: what lies over the conversation, else what is asked about, else the conversation."""
        over = self.screen is not self._bottom.screen and self.screen.query(VerticalScroll).first()
        panel = self._question.panel
        if target := over or (panel and panel.long_part):
            (target.scroll_page_up if direction < 0 else target.scroll_page_down)(animate=False)
        else:
            self._transcript.page(direction)

    def action_to_edge(self, direction: int) -> None:
        """Go to the first mounted line, or to the end, which is then followed again."""
        can_go_back = direction < 0 and self._transcript.max_scroll_y > 0
        self._transcript.scroll_home(animate=False) if can_go_back else self._transcript.anchor()

    def refresh_all(self, _: App[Any] | None = None) -> None:
        """Draw every line again: the terminal was somebody else's meanwhile."""
        self.screen.refresh(layout=True)
        for widget in self.screen.walk_children():
            widget.refresh()

    def action_to_shell(self) -> None:
        """Ctrl-Z: back to the shell, whose `fg` returns here."""
        if not stop_for_shell():
            self.notify(NO_SHELL, markup=False)

    def action_editor(self) -> None:
        """Ctrl-G: write the message in $VISUAL or $EDITOR."""
        with self.suspend():
            text = edit_text(self._composer.text)
        self.refresh_all()
        if text is not None:
            self._composer.set_text(text)

    async def on_key(self, event: events.Key) -> None:
        """Ctrl-D with nothing written quits; a letter typed while a card has the focus goes to the composer."""
        if event.key == "ctrl+d" and not self._composer.text:
            await self.action_leave()
        elif self.screen is not self._bottom.screen or self._question.panel is not None:
            return
        elif event.is_printable and event.character and self.focused is not self._composer:
            self._composer.focus()
            self._composer.insert(event.character)
