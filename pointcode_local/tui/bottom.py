"""What is about now, below the conversation: what runs, the plan, what waits, lists of choices, the message field."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.containers import Vertical

from pointcode_local.tui.composer import Choices, Composer
from pointcode_local.tui.status import ActivityLine, QueueLine, TodoPanel
from pointcode_local.tui.story import Story

PLACEHOLDER = "What shall I do?  @ names a file, / lists commands"
PLACEHOLDER_BUSY = "Enter queues a message, ctrl+s puts it into this turn"
PLACEHOLDER_QUEUED = "Up takes back what is queued"


class Bottom(Vertical):
    """The lines around the composer; an open question comes in before `choices`."""

    def __init__(self, choices: Choices, composer: Composer, clock: Callable[[], float], *, animate: bool) -> None:
        self._activity = ActivityLine(clock, animate=animate)
        self._todo, self._queue, self._composer = TodoPanel(), QueueLine(), composer
        super().__init__(self._activity, self._todo, self._queue, choices, composer, id="bottom")

    def show(self, story: Story, waiting: Sequence[str], doing: str, *, is_busy: bool, can_stop: bool) -> None:
        """Draw from the present state; `waiting` are messages that the agent does not have yet."""
        queue = [*story.queued, *waiting]
        idle = PLACEHOLDER_BUSY if is_busy else PLACEHOLDER
        self._composer.placeholder = PLACEHOLDER_QUEUED if queue else idle
        self._activity.set_activity(doing, "esc to stop" if can_stop else "")
        self._todo.set_items(story.todo)
        self._queue.set_queue(story.steering, queue)

    def turn_started(self) -> None:
        """Its time counts from now."""
        self._activity.restart()

    def toggle_plan(self) -> None:
        """All steps of the plan, or only the present one."""
        self._todo.toggle()
