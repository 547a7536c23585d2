"""Every task of the evaluation fails on its untouched folder and passes on its reference solution."""

from pathlib import Path

import pytest

from pointcode_local.turnbench.task import Task
from pointcode_local.turnbench.tasks import FAMILIES

ALL = [pytest.param(task, id=f"{family}/{task.name}") for family, tasks in FAMILIES.items() for task in tasks]


@pytest.mark.parametrize("task", ALL)
def test_a_task_fails_untouched_and_passes_on_its_solution(task: Task, tmp_path: Path):
    task.prepare(tmp_path)
    assert task.judge(tmp_path, "") != ""
    task.solve(tmp_path)
    assert task.judge(tmp_path, task.solution.answer) == ""


def test_there_are_enough_tasks_with_names_of_their_own():
    names = [f"{family}/{task.name}" for family, tasks in FAMILIES.items() for task in tasks]
    assert len(names) >= 40
    assert len(set(names)) == len(names)


def test_a_task_that_wants_an_answer_does_not_pass_without_one(tmp_path: Path):
    for family in ("explain", "shell"):
        for task in FAMILIES[family]:
            if not task.solution.files and not task.solution.modes:
                folder = tmp_path / family / task.name
                task.prepare(folder)
                assert task.judge(folder, "I do not know."), task.name
