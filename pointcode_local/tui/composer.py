"""Where the person writes: several lines, history, completion of `/` commands and `@` paths, large pastes folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

from pointcode_local.complete import PromptHistory, SlashCommand, matching_commands, mention, mention_at, mention_length
from pointcode_local.render import plain
from pointcode_local.tui.vi import ViKeys

LARGE_PASTE_CHARS = 4000
LARGE_PASTE_LINES = 40
MAX_FOUND = 8
SLOW_S = 0.3  # files that are not found by then are said to be looked for
LOOKING = "looking for files…"
MAX_SHOWN = 9  # lines of the completion list
SEARCH_TITLE = "earlier messages (type to search, enter takes one, esc goes back)"
_CHIP = re.compile(r"\[pasted text #(\d+)[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of the completion list: what is inserted, and what explains it."""

    insert: str
    label: str
    detail: str = ""


JOINERS = ("\u200c", "\u200d")  # typed in Persian and in the scripts of India, and within emoji


class Choices(Static):
    """The completion list above the composer; the composer keeps the focus and moves the mark."""

    def __init__(self) -> None:
        super().__init__("", id="choices", markup=False)
        self.choices: list[Choice] = []
        self.at = 0
        self.display = False
        self._title = ""

    def offer(self, choices: list[Choice], title: str = "") -> None:
        """Show `choices` under `title` (or nothing), the first one marked."""
        if choices != self.choices:
            self.choices, self.at = choices, 0
        self._title = title
        self.display = bool(choices or title)
        self._draw()

    def move(self, by: int) -> None:
        """Move the mark, around the ends."""
        self.at = (self.at + by) % max(1, len(self.choices))
        self._draw()

    def _draw(self) -> None:
        width = max((len(choice.label) for choice in self.choices), default=0)
        first = max(0, min(self.at - MAX_SHOWN // 2, len(self.choices) - MAX_SHOWN))
        lines = [Content.assemble((self._title, "$foreground 60%"))] if self._title else []
        for n, choice in enumerate(self.choices[first : first + MAX_SHOWN], first):
            mark, style = ("› ", "bold $primary") if n == self.at else ("  ", "")
            label = choice.label.ljust(width) if choice.detail else choice.label
            lines.append(Content.assemble((mark + label, style), ("  " + choice.detail, "$foreground 60%")))
        n_more = len(self.choices) - first - MAX_SHOWN
        if n_more > 0:
            lines.append(Content.assemble((f"  {n_more} more below", "$foreground 42%")))
        self.update(Content("\n").join(lines))


class Composer(TextArea):
    """The input field. Posts `Submitted`; everything it does not handle goes up to the app."""

    class Submitted(Message):
        """The person sends `text`; `steer` puts it into the running turn."""

        def __init__(self, text: str, *, steer: bool) -> None:
            super().__init__()
            self.text = text
            self.steer = steer

    class PathsWanted(Message):
        """An `@` mention is being typed; the app answers with `offer_paths`."""

        def __init__(self, query: str) -> None:
            super().__init__()
            self.query = query

    class AnswerWanted(Message):
        """Tab, where it completes nothing: to the open question, if there is one."""

    def __init__(
        self,
        choices: Choices,
        history: PromptHistory,
        own_commands: Callable[[], Sequence[SlashCommand]] = tuple,
        take_queue: Callable[[], str] = str,
        *,
        vi_keys: bool = False,
    ) -> None:
        super().__init__(id="composer", soft_wrap=True, show_line_numbers=False, tab_behavior="focus")
        self._vi = ViKeys(self, self._arrow) if vi_keys else None
        self._show_vi_mode()
        self.highlight_cursor_line = False
        self._choices = choices
        self._history = history
        self._own_commands = own_commands
        self._take_queue = take_queue
        self._history_at: int | None = None
        self._draft = ""
        self._pastes: list[str] = []
        self._search: str | None = None
        self._listed_for = ""  # the text that the completion list is about

    # ------------------------------------------------------------------ text
    def set_text(self, text: str) -> None:
        """Replace everything, cursor at the end; a large text becomes a chip."""
        self.load_text(self._typed(text))
        self.move_cursor(self.document.end)

    def _typed(self, text: str) -> str:
        """What stands in the field for `text`: itself, inert, or a chip when it is too large to edit here."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        n_lines = text.count("\n") + 1
        if len(text) <= LARGE_PASTE_CHARS and n_lines <= LARGE_PASTE_LINES:
            return plain(text)
        self._pastes.append(text)
        return f"[pasted text #{len(self._pastes)}, {n_lines:,} lines]"

    def _expanded(self) -> str:
        """The text with the large pastes put back."""

        def paste(match: re.Match[str]) -> str:
            number = int(match.group(1))
            return self._pastes[number - 1] if 0 < number <= len(self._pastes) else match.group()

        return _CHIP.sub(paste, self.text)

    def submit(self, *, steer: bool = False) -> None:
        """Send what is there."""
        text = self._expanded().strip("\n")
        if not text.strip():
            return
        self._history.add(text)
        self._history_at, self._draft = None, ""
        self._pastes.clear()
        self.load_text("")
        self._choices.offer([])
        self.post_message(self.Submitted(text, steer=steer))

    def add_text(self, text: str) -> None:
        """Insert at the cursor, as a paste does."""
        self.insert(self._typed(text))

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.add_text(event.text)

    # ------------------------------------------------------------------ keys
    async def _on_key(self, event: events.Key) -> None:
        in_list = self._choices.display and self._handle_choice_key(event.key)
        if in_list or self._handle_vi(event) or self._handle_key(event.key):
            event.stop()
            event.prevent_default()
        elif event.character in JOINERS:  # of no width, so that Textual takes it for no letter
            self.insert(event.character)

    def _handle_vi(self, event: events.Key) -> bool:
        if self._vi is None:
            return False
        handled = self._vi.handle(event.key, event.character)
        self._show_vi_mode()
        return handled

    def _show_vi_mode(self) -> None:
        self.border_subtitle = self._vi.mode if self._vi else ""

    def _arrow(self, key: str) -> None:
        if self._handle_key(key):
            return
        if key == "up":
            self.action_cursor_up()
        else:
            self.action_cursor_down()

    def _handle_key(self, key: str) -> bool:
        match key:
            case "enter":
                self._enter()
            case "shift+enter" | "ctrl+j" | "alt+enter":
                self.insert("\n")
            case "ctrl+s":
                self.submit(steer=True)
            case "up" if (
                self.cursor_location[0] == 0 and self.wrapped_document.location_to_offset(self.cursor_location).y == 0
            ):
                return self._take_back() or self._recall(-1)
            case "down" if self._on_last_line():
                return self._recall(1)
            case "ctrl+r":
                self._search_history()
            case "ctrl+underscore":
                self.undo()
            case "tab":
                self.post_message(self.AnswerWanted())
            case _:
                return False
        return True

    def _on_last_line(self) -> bool:
        offset = self.wrapped_document.location_to_offset(self.cursor_location)
        return offset.y >= self.wrapped_document.height - 1

    def _enter(self) -> None:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column and line[:column].endswith("\\") and not line[:column].endswith("\\\\"):
            self.replace("\n", (row, column - 1), (row, column))
        else:
            self.submit()

    def _handle_choice_key(self, key: str) -> bool:
        match key:
            case "up":
                self._choices.move(-1)
            case "down" | "ctrl+r":
                self._choices.move(1)
            case "tab":
                self._bring_list_up_to_date()
                self._accept()
            case "enter":
                self._bring_list_up_to_date()
                return self._choices.display and self._accept_or_pass()
            case "escape":
                self._leave_search()
            case _:
                return False
        return True

    def _leave_search(self) -> None:
        """Escape: close the list; after a search the field holds what it held before."""
        before, self._search = self._search, None
        if before is not None:
            self.set_text(before)
        self._choices.offer([])

    def _accept_or_pass(self) -> bool:
        """Enter takes the marked choice, unless the text is that choice already."""
        if not self._choices.choices:
            return True
        chosen = self._choices.choices[self._choices.at].insert
        if self._search is None and self.text.strip() == chosen.strip():
            return False
        self._accept()
        return True

    def _accept(self) -> None:
        if not self._choices.choices:
            return
        chosen = self._choices.choices[self._choices.at].insert
        if self._search is not None or self.text.startswith("/"):
            self._search = None
            self.set_text(chosen)
        else:
            row, column = self.cursor_location
            typed = mention_length(self.document.get_line(row)[:column])
            self.replace(f"{mention(chosen)} ", (row, column - typed), (row, column))
        self._choices.offer([])

    # --------------------------------------------------------- history, lists
    def _take_back(self) -> bool:
        """Messages that wait come back into an empty field, to be changed."""
        if self.text or not (queued := self._take_queue()):
            return False
        self.set_text(queued)
        return True

    def _recall(self, step: int) -> bool:
        entries = self._history.entries
        at = len(entries) if self._history_at is None else self._history_at
        new_at = at + step
        if not 0 <= new_at <= len(entries) or (self._history_at is None and step > 0):
            return False
        if self._history_at is None:
            self._draft = self.text
        self._history_at = None if new_at == len(entries) else new_at
        self.set_text(self._draft if self._history_at is None else entries[new_at])
        if step < 0:
            self.move_cursor((0, 0))
        self._choices.offer([])
        return True

    def _search_history(self) -> None:
        self._search = self.text
        self._offer_history()

    def _offer_history(self) -> None:
        found = self._history.search(self.text)[:MAX_FOUND]
        title = SEARCH_TITLE if found else f"{SEARCH_TITLE}: none contains this"
        self._offer_choices([Choice(entry, plain(entry.split("\n")[0])[:70]) for entry in found], title)

    def on_text_area_changed(self) -> None:
        """The text is another one."""
        self._offer()

    def _bring_list_up_to_date(self) -> None:
        """Fast keys overtake the list: what was marked for an earlier text must not replace this one."""
        if self.text != self._listed_for:
            self._choices.offer([])
            self._offer()

    def _offer(self) -> None:
        """Offer what fits the text before the cursor; paths come later."""
        if self._search is not None:
            self._offer_history()
            return
        text = self.text
        if text.startswith("/") and "\n" not in text and " " not in text:
            self._offer_choices(
                [
                    Choice(f"/{c.name} " if c.argument else f"/{c.name}", f"/{c.name}", c.summary)
                    for c in matching_commands(text[1:], self._own_commands())
                ]
            )
            return
        query = self._query()
        if query is None:
            self._offer_choices([])
        else:
            self.post_message(self.PathsWanted(query))
            if not self._choices.display:
                self.set_timer(SLOW_S, lambda: self._say_that_files_are_looked_for(query))

    def _say_that_files_are_looked_for(self, query: str) -> None:
        if self._query() == query and self.text != self._listed_for:
            self._choices.offer([], LOOKING)

    def _query(self) -> str | None:
        row, column = self.cursor_location
        return mention_at(self.document.get_line(row)[:column])

    def _offer_choices(self, choices: list[Choice], title: str = "") -> None:
        self._listed_for = self.text
        self._choices.offer(choices, title)

    def offer_paths(self, query: str, paths: list[str]) -> None:
        """The app's answer to `PathsWanted`; dropped when the person typed on."""
        if self._query() == query:
            self._offer_choices([Choice(path, plain(path)) for path in paths if path != query and path.isprintable()])
