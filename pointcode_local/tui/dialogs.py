"""The panels that ask the person: may this call run, and the model's own questions.

Both take the keys from the composer. Keys typed before the panel could be read do not answer it: it is armed only
`ARM_AFTER_S` after its first frame, and each early key starts that time again. Early letters go to the composer; a
letter that is no answer later on gives the composer the keys too, so that no word of a message answers anything. The
panel has them again when the message is sent or wiped out.
"""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from pointcode_local.diff import diff_title
from pointcode_local.events import PermissionAsked, QuestionAsked
from pointcode_local.render import clip, one_line, plain, shortened, shown_lines
from pointcode_local.tui.diffview import DiffView

ARM_AFTER_S = 0.3
ALL_EDITS = "all edits"  # the answer "yes", and the mode accept-edits
MIN_CALL_LINES = 3  # 2 on a terminal of less than 20 lines
MAX_REASON_CELLS = 160  # so that the answers stay in view
MAX_RULE_CELLS = 160
_ARGUMENTS_SHOWN = 20_000
_ARGUMENT_SHOWN = 100_000


class Answered(Message):
    """The person answered `call_id` with `text`."""

    def __init__(self, call_id: str, text: str) -> None:
        super().__init__()
        self.call_id = call_id
        self.text = text


class EarlyKey(Message):
    """A printable key (or a paste) that was meant for the composer; `and_all_others`: which gets the following too."""

    def __init__(self, character: str, *, and_all_others: bool = False) -> None:
        super().__init__()
        self.character = character
        self.and_all_others = and_all_others


class AskPanel(Vertical, can_focus=True):
    """A list of options chosen by arrow keys and Enter, by number, or by letter."""

    def __init__(self, call_id: str, clock: Callable[[], float], options: list[tuple[str, str, str]]) -> None:
        """`options`: (answer, key, label)."""
        super().__init__(classes="ask")
        self.call_id = call_id
        self._clock = clock
        self._options = options
        self._at = 0
        self._quiet_since: float | None = None  # None until the first frame was drawn
        self._is_message_begun = False  # of early letters
        self._list = Static("", classes="options", markup=False)

    def on_mount(self) -> None:
        """Take the keys at once, so that they do not fall into the composer, but do not act on them yet."""
        self.focus()
        self._draw()
        self.call_after_refresh(self._first_frame)

    def _first_frame(self) -> None:
        self._quiet_since = self._clock()
        self.set_timer(ARM_AFTER_S, self.check_armed)

    def check_armed(self) -> None:
        """Show whether keys count now; called when they may have begun to."""
        self._draw()

    def take_keys(self) -> None:
        """Back from the composer."""
        self._is_message_begun = False
        self._quiet_since = self._clock()
        self.set_timer(ARM_AFTER_S, self.check_armed)
        self.focus()
        self._draw()

    @property
    def is_armed(self) -> bool:
        """Whether keys count now."""
        return self._quiet_since is not None and self._clock() - self._quiet_since >= ARM_AFTER_S

    def _draw(self) -> None:
        armed = self.is_armed
        lines: list[Content] = []
        for n, (_, key, label) in enumerate(self._options):
            marked = n == self._at
            style = "bold $accent" if marked and armed else "" if armed else "$foreground 60%"
            lines.append(
                Content.assemble(("› " if marked else "  ", style), (f"{key}  ", "$foreground 60%"), (label, style))
            )
        self._list.update(Content("\n").join(lines))

    def on_key(self, event: events.Key) -> None:
        """Choose; Escape and the app's own keys go up. (Textual calls this handler of every base class: see hooks.)"""
        if self.leaves_alone(event):
            return
        event.stop()
        event.prevent_default()
        if not self.is_armed:
            self._early(event)
            return
        match event.key:
            case "up" | "down" if self._options:
                self._at = (self._at + (1 if event.key == "down" else -1)) % len(self._options)
                self._draw()
            case "enter" if self._is_message_begun:
                self.post_message(EarlyKey("", and_all_others=True))  # it is the message that this was meant for
            case "enter" if self._options:
                self._choose(self._options[self._at][0])
            case _:
                self.other_key(event)

    @property
    def long_part(self) -> Widget | None:
        """What page up and page down scroll; None when all of it is in view."""
        return next((part for part in (*self.query(CallView), self) if part.max_scroll_y > 0), None)

    def leaves_alone(self, event: events.Key) -> bool:
        """Whether this key is for somebody else."""
        return event.key in ("escape", "ctrl+c", "ctrl+d", "pageup", "pagedown")

    def other_key(self, event: events.Key) -> None:
        """An option by its letter; with any other one a message begins."""
        for answer, key, _ in self._options:
            if event.character == key:
                self._choose(answer)
                return
        if event.is_printable and event.character:
            self.post_message(EarlyKey(event.character, and_all_others=True))

    def _early(self, event: events.Key) -> None:
        if self._quiet_since is not None:
            self._quiet_since = self._clock()
            self.set_timer(ARM_AFTER_S, self.check_armed)
        if event.is_printable and event.character:
            self._is_message_begun = True
            self.post_message(EarlyKey(event.character))

    def _choose(self, answer: str) -> None:
        self.post_message(Answered(self.call_id, answer))


class CallView(VerticalScroll, can_focus=False):
    """What is asked about. It is as high as the rest of the panel leaves it, so that the answers are always in view."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Its lines, or what 70 % of the terminal leave beside the frame (2), its margins (2) and the other parts."""
        others = [child for child in self.siblings if isinstance(child, Static)]
        used = sum(c.get_content_height(container, viewport, width) + c.styles.margin.height for c in others)
        room = max(MIN_CALL_LINES - (viewport.height < 20), viewport.height * 7 // 10 - 4 - used)
        return min(super().get_content_height(container, viewport, width), room)

    def on_resize(self) -> None:
        """Another part is in view."""
        self._tell_rest()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Another part is in view."""
        super().watch_scroll_y(old_value, new_value)
        self._tell_rest()

    def _tell_rest(self) -> None:
        below = round(self.max_scroll_y - self.scroll_y)
        if isinstance(self.parent, AskPanel):
            lines = f"{below:,} more line{'s' * (below != 1)}"
            self.parent.border_subtitle = f"page down: {lines}" if below > 0 else ""


class PermissionPanel(AskPanel):
    """May this call run? Shows the whole call, its diff, the reason, and exactly the rule that "always" stores."""

    def __init__(self, ask: PermissionAsked, clock: Callable[[], float], mode: str) -> None:
        options = [("once", "y", "Yes, this once")]
        if ask.diffs and mode == "ask":
            options.append((ALL_EDITS, "e", "Yes, and all later edits"))
        if ask.rule:
            rule = clip(plain(ask.rule).replace("\n", "␊"), MAX_RULE_CELLS)  # a longer one is the command above
            options.append(("always", "a", f"Always allow  {rule}"))
        options.append(("deny", "n", "No, go on without (esc stops)"))
        super().__init__(ask.call_id, clock, options)
        self._ask = ask

    def compose(self) -> ComposeResult:
        """Title, call, reason, options."""
        ask = self._ask
        title = ask.name if "command" in ask.arguments else ask.title or ask.name  # the command itself stands below
        yield Static(Content.assemble(("Allow  ", "bold $accent"), (one_line(title), "bold")), markup=False)
        with CallView(classes="call"):
            if ask.diffs:
                for diff in ask.diffs:
                    yield Static(Content(diff_title(diff)), classes="path", markup=False)
                    yield DiffView(diff)
            else:
                yield Static(_call_text(ask), classes="arguments", markup=False)
        if ask.reason:
            yield Static(
                Content(f"Why it asks: {one_line(ask.reason, MAX_REASON_CELLS)}").stylize("$foreground 60%"),
                markup=False,
            )
        yield self._list


def _call_text(ask: PermissionAsked) -> Content:
    """The call's arguments in full: a command as it will run, everything else as `name: value`."""
    parts: list[str] = []
    for name, value in ask.arguments.items():
        text = "\n".join(shown_lines(shortened(str(value), _ARGUMENT_SHOWN)))
        parts.append(text if name == "command" else f"{plain(name)}: {text}")
    whole = "\n".join(parts)
    if len(whole) <= _ARGUMENTS_SHOWN:
        return Content(whole)
    hidden = len(whole) - _ARGUMENTS_SHOWN
    half = _ARGUMENTS_SHOWN // 2
    return Content.assemble(whole[:half], (f"\n… {hidden:,} characters not shown …\n", "bold $warning"), whole[-half:])


class QuestionPanel(AskPanel):
    """The model's question: pick an option by number, or write an answer."""

    def __init__(self, ask: QuestionAsked, clock: Callable[[], float]) -> None:
        options = [(option, str(n), one_line(option)) for n, option in enumerate(ask.options[:9], 1)]
        super().__init__(ask.call_id, clock, [*options, ("", "w", "Write an answer")] if options else [])
        self._ask = ask
        self._input = Input(placeholder="Your answer, then Enter", classes="free")
        self._input.cursor_blink = False

    def compose(self) -> ComposeResult:
        """Question, options, free answer."""
        question = "\n".join(shown_lines(shortened(self._ask.question, _ARGUMENTS_SHOWN)))
        yield Static(Content.assemble(("Question  ", "bold $accent"), question), markup=False)
        yield self._list
        self._input.display = not self._options
        yield self._input

    def check_armed(self) -> None:
        """A question without options is answered in the input, from when keys count."""
        super().check_armed()
        if self.is_armed and not self._options:
            self._input.focus()

    def _choose(self, answer: str) -> None:
        if answer:
            super()._choose(answer)
            return
        self._input.display = True
        self._input.focus()

    def leaves_alone(self, event: events.Key) -> bool:
        """Keys of the input are its own."""
        return self._input.has_focus or super().leaves_alone(event)

    def other_key(self, event: events.Key) -> None:
        """Without options every key is meant for the input."""
        if not self._options and event.is_printable and event.character:
            self._input.insert_text_at_cursor(event.character)
            self._input.focus()
        else:
            super().other_key(event)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A written answer."""
        event.stop()
        if event.value.strip():
            self.post_message(Answered(self.call_id, event.value))


def make_panel(ask: PermissionAsked | QuestionAsked, clock: Callable[[], float], mode: str) -> AskPanel:
    """The panel for what the agent asks in this permission mode."""
    return PermissionPanel(ask, clock, mode) if isinstance(ask, PermissionAsked) else QuestionPanel(ask, clock)
