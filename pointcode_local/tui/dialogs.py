"""The panels that ask the person: may this call run, and the model's own questions.

Both take the keys from the composer. Keys typed before the panel could be read do not answer it: it is armed only
`ARM_AFTER_S` after its first frame, and each early key starts that time again. Early letters go to the composer; a
letter that is no answer later on gives the composer the keys too, and so does every letter while a message is begun, so
that no word of a message answers anything. The panel has the keys again when the message is sent or wiped out, or when
tab, an arrow key or a click asks for it.
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
from pointcode_local.events import FileDiff, PermissionAsked, QuestionAsked
from pointcode_local.render import clip, one_line, plain, shortened, shown_lines
from pointcode_local.tui.diffview import DiffView

ARM_AFTER_S = 0.3
HINT_MESSAGE_HAS_KEYS = "Your message has the keys; tab gives them to this question."
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

    def __init__(
        self,
        call_id: str,
        clock: Callable[[], float],
        options: list[tuple[str, str, str]],
        message: Callable[[], str] = str,
    ) -> None:
        """`options`: (answer, key, label); `message`: what stands in the composer."""
        super().__init__(classes="ask")
        self._message = message
        self.call_id = call_id
        self._clock = clock
        self._options = options
        self._at = 0
        self._quiet_since: float | None = None  # None until the first frame was drawn
        self._is_meant = (
            False  # a key or click asked for it: the next keys are for this panel whatever the composer holds
        )
        self._is_done = False  # answered, or the composer has the keys: what comes still is not for this panel
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

    def take_keys(self, *, is_meant: bool = False) -> None:
        """Back from the composer; `is_meant`: by a key that asked for it."""
        self._is_meant, self._is_done = is_meant, False
        self._quiet_since = self._clock()
        self.set_timer(ARM_AFTER_S, self.check_armed)
        self.focus()
        self._draw()

    def on_click(self) -> None:
        """A click is meant for what it hits."""
        self.take_keys(is_meant=True)

    @property
    def is_armed(self) -> bool:
        """Whether keys count now."""
        return self._quiet_since is not None and self._clock() - self._quiet_since >= ARM_AFTER_S

    @property
    def is_message_begun(self) -> bool:
        """Whether letters and Enter are rather meant for the message in the composer. An answer that was pressed too
        early, perhaps again and again, is no message."""
        begun = self._message().strip()
        is_early_answer = len(set(begun)) == 1 and any(begun[0] == key for _, key, _ in self._options)
        return bool(begun) and not is_early_answer and not self._is_meant

    def _draw(self) -> None:
        begun = self.is_message_begun
        armed = self.is_armed and not begun
        lines: list[Content] = []
        for n, (_, key, label) in enumerate(self._options):
            marked = n == self._at
            style = "bold $accent" if marked and armed else "" if armed else "$foreground 60%"
            lines.append(
                Content.assemble(("› " if marked else "  ", style), (f"{key}  ", "$foreground 60%"), (label, style))
            )
        if begun:
            lines.append(Content(f"  {HINT_MESSAGE_HAS_KEYS}").stylize("$foreground 60%"))
        self._list.update(Content("\n").join(lines))

    def on_key(self, event: events.Key) -> None:
        """Choose; Escape and the app's own keys go up. (Textual calls this handler of every base class: see hooks.)"""
        if self.leaves_alone(event):
            return
        event.stop()
        event.prevent_default()
        if self._is_done:
            self._pass_on(event)
            return
        if not self.is_armed:
            self._early(event)
            return
        match event.key:
            case "tab":
                self.take_keys(is_meant=True)
            case "up" | "down" if self._options:
                self._at = (self._at + (1 if event.key == "down" else -1)) % len(self._options)
                self._is_meant = True
                self._draw()
            case "enter" if self.is_message_begun:
                self._give_keys("")  # it is the message that this was meant for
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
            if event.character == key and not self.is_message_begun:
                self._choose(answer)
                return
        if event.is_printable and event.character:
            self._give_keys(event.character)

    def _give_keys(self, character: str) -> None:
        """To the composer, with those that are on their way already."""
        self._is_done = True
        self.post_message(EarlyKey(character, and_all_others=True))

    def _pass_on(self, event: events.Key) -> None:
        if event.is_printable and event.character:
            self.post_message(EarlyKey(event.character))

    def _early(self, event: events.Key) -> None:
        if self._quiet_since is not None:
            self._quiet_since = self._clock()
            self.set_timer(ARM_AFTER_S, self.check_armed)
        self._pass_on(event)

    def _choose(self, answer: str) -> None:
        self._is_done = True
        self.post_message(Answered(self.call_id, answer))


class CallView(VerticalScroll, can_focus=False):
    """What is asked about. It is as high as the rest of the panel leaves it, so that the answers are always in view; of
    a diff that has no room the first change is in view, not the lines above it."""

    _is_placed = False

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Its lines, or what 70 % of the terminal leave beside the frame (2), its margins (2) and the other parts."""
        others = [child for child in self.siblings if isinstance(child, Static)]
        used = sum(c.get_content_height(container, viewport, width) + c.styles.margin.height for c in others)
        room = max(MIN_CALL_LINES - (viewport.height < 20), viewport.height * 7 // 10 - 4 - used)
        return min(super().get_content_height(container, viewport, width), room)

    def on_resize(self) -> None:
        """Another part is in view."""
        if not self._is_placed:
            self._is_placed = True
            self.call_after_refresh(self._place)
        self._tell_rest()

    def _place(self) -> None:
        diff = next(iter(self.query(DiffView)), None)
        if diff is not None and self.max_scroll_y > 0 and self.scroll_y == 0:
            has_room = self.size.height >= MIN_CALL_LINES + 1  # for a line above it
            change = diff.virtual_region.y + diff.first_change(diff.size.width)
            self.scroll_to(y=max(0, change - has_room), animate=False)

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
    """May this call run? Shows the whole call, its diff, the reason, and exactly the rule that "always" stores.
    The answer for the session means the same rule."""

    def __init__(self, ask: PermissionAsked, clock: Callable[[], float], mode: str, message: Callable[[], str]) -> None:
        options = [("once", "y", "Yes, this once")]
        if ask.diffs and mode == "ask":
            options.append((ALL_EDITS, "e", "Yes, and all later edits"))
        if ask.rule:
            rule = clip(plain(ask.rule).replace("\n", "␊"), MAX_RULE_CELLS)  # a longer one is the command above
            if ask.offers_session:
                options.append(("session", "s", "Allow for this session"))
            options.append(("always", "a", f"Always allow  {rule}"))
        options.append(("deny", "n", "No, go on without (esc stops)"))
        super().__init__(ask.call_id, clock, options, message)
        self._ask = ask

    def compose(self) -> ComposeResult:
        """Title, call, reason, options."""
        ask = self._ask
        title = ask.name if "command" in ask.arguments else ask.title or ask.name  # the command itself stands below
        has_title = [one_line(title) == one_line(f"{ask.name} {diff.path}") for diff in ask.diffs] == [True]
        about = f"  {_becomes(ask.diffs[0])}" if has_title else ""
        heading = Content.assemble(("Allow  ", "bold $accent"), (one_line(title), "bold"), (about, "$foreground 60%"))
        yield Static(heading, markup=False)
        with CallView(classes="call"):
            for diff in ask.diffs:
                if not has_title:
                    yield Static(Content(diff_title(diff)), classes="path", markup=False)
                yield DiffView(diff)
            if not ask.diffs:
                yield Static(_call_text(ask), classes="arguments", markup=False)
        if ask.reason and not (has_title and ask.reason == f"{ask.name} changes {ask.diffs[0].path}"):
            yield Static(
                Content(f"Why it asks: {one_line(ask.reason, MAX_REASON_CELLS)}").stylize("$foreground 60%"),
                markup=False,
            )
        yield self._list


def _becomes(diff: FileDiff) -> str:
    return "a new file" if diff.before is None else "deletes it" if diff.after is None else ""


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

    def __init__(self, ask: QuestionAsked, clock: Callable[[], float], message: Callable[[], str]) -> None:
        options = [(option, str(n), one_line(option)) for n, option in enumerate(ask.options[:9], 1)]
        super().__init__(ask.call_id, clock, [*options, ("", "w", "Write an answer")] if options else [], message)
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


def make_panel(
    ask: PermissionAsked | QuestionAsked, clock: Callable[[], float], mode: str, message: Callable[[], str] = str
) -> AskPanel:
    """The panel for what the agent asks in this permission mode; `message` is what the person has written meanwhile."""
    if isinstance(ask, PermissionAsked):
        return PermissionPanel(ask, clock, mode, message)
    return QuestionPanel(ask, clock, message)
