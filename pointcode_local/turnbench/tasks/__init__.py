"""The tasks by family. Once measured, a task is changed only for a proven fault of its own."""

from __future__ import annotations

from collections.abc import Mapping

from pointcode_local.turnbench.task import Task
from pointcode_local.turnbench.tasks import create, encodings, explain, fix, parameter, rename, shell

FAMILIES: Mapping[str, tuple[Task, ...]] = {
    "create": create.TASKS,
    "fix": fix.TASKS,
    "rename": rename.TASKS,
    "parameter": parameter.TASKS,
    "encodings": encodings.TASKS,
    "explain": explain.TASKS,
    "shell": shell.TASKS,
}
