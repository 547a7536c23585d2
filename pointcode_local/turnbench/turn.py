"""`pointcode bench turn`: plays the tasks through the agent as `pointcode -p` does, and judges what is left behind.

The model is loaded once; each task has a folder, a session and settings of its own, in mode auto with the sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path

from pointcode_local.agent import Agent
from pointcode_local.compose import Setup, open_model, prepare
from pointcode_local.config import Places, Settings
from pointcode_local.engine.types import ChatDelta, ChatModel, ChatRequest, SamplingParams
from pointcode_local.exits import EXIT_DONE, UsageError
from pointcode_local.headless import Report
from pointcode_local.host import AppHost
from pointcode_local.hosts import SharedModel
from pointcode_local.turnbench.report import TaskRecord, record_of, summary, table
from pointcode_local.turnbench.task import Task
from pointcode_local.turnbench.tasks import FAMILIES
from pointcode_local.waiting import StderrLines

MAX_TURNS = 20
TIMEOUT_S = 120.0


class KeptModel(SharedModel):
    """A model that stays open between tasks, with a sampling of its own when one is given."""

    def __init__(self, model: ChatModel, sampling: SamplingParams | None) -> None:
        super().__init__(model, _keep_open)
        self._sampling = sampling

    def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Continue the conversation."""
        return super().stream(request if self._sampling is None else replace(request, sampling=self._sampling))


async def _keep_open() -> None:
    """Nothing: `bench turn` closes the model itself."""


def chosen_tasks(patterns: str) -> list[tuple[str, Task]]:
    """The tasks whose family or `family/name` matches one of the globs (comma-separated). Raises UsageError."""
    globs = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    chosen = [
        (family, task)
        for family, tasks in FAMILIES.items()
        for task in tasks
        if any(fnmatch(family, glob) or fnmatch(f"{family}/{task.name}", glob) for glob in globs)
    ]
    if not chosen:
        raise UsageError(f"no task matches {patterns!r}; families: {', '.join(FAMILIES)}")
    return chosen


async def play_task(
    family: str, task: Task, settings: Settings, places: Places, model: ChatModel, timeout_s: float
) -> TaskRecord:
    """One task in a fresh folder, to its judgement."""
    with tempfile.TemporaryDirectory(prefix="pointcode-turn-", ignore_cleanup_errors=True) as name:
        folder, state = _prepared(Path(name), task)

        async def reopen(*_: object) -> ChatModel:
            return model

        setup = Setup(settings, Places(state, state, places.cache), folder)
        host = AppHost(setup, interactive=False, open_model=reopen)
        try:
            agent = await host.open(lambda _: None)
            report, seconds = await _play(agent, task.prompt, timeout_s)
            problem = await asyncio.to_thread(task.judge, folder, str(report.result(seconds)["result"]))
            return record_of(family, task, report, seconds, problem, agent.conversation.messages)
        finally:
            await host.close()


def _prepared(root: Path, task: Task) -> tuple[Path, Path]:
    """The task's folder and that of its session, links resolved."""
    folder, state = root.resolve() / "work", root.resolve() / "state"
    folder.mkdir()
    state.mkdir()
    task.prepare(folder)
    return folder, state


async def _play(agent: Agent, prompt: str, timeout_s: float) -> tuple[Report, float]:
    """The report of one turn, and its seconds; a turn that takes too long is cancelled."""
    report, begun_s = Report("", time.monotonic()), time.monotonic()
    alarm = asyncio.get_running_loop().call_later(timeout_s, agent.cancel)
    try:
        async with aclosing(agent.run(prompt)) as events:
            async for event in events:
                report.take(event)
    finally:
        alarm.cancel()
    return report, time.monotonic() - begun_s


async def run_tasks(
    chosen: Sequence[tuple[str, Task]],
    settings: Settings,
    places: Places,
    model: ChatModel,
    timeout_s: float = TIMEOUT_S,
) -> list[TaskRecord]:
    """All tasks one after the other, with a line of progress each on stderr."""
    show = StderrLines().line
    records: list[TaskRecord] = []
    for family, task in chosen:
        record = await play_task(family, task, settings, places, model, timeout_s)
        records.append(record)
        end = "pass" if record.passed else f"FAIL  {record.problem}"
        show(f"{len(records):3}/{len(chosen)}  {record.seconds:6.1f} s  {record.id:<28} {end}")
    return records


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "pointcode bench turn", description="Small coding tasks played through the agent, judged mechanically."
    )
    parser.add_argument("--model", help="path, name or id; default: as for pointcode -p")
    parser.add_argument("--backend", help="what decodes")
    parser.add_argument("--endpoint", metavar="URL", help="ask this OpenAI-compatible server")
    parser.add_argument("--tasks", metavar="GLOB", default="*", help="globs over family or family/name, with commas")
    parser.add_argument("--temperature", type=float, help="default: the model's own (greedy for small models)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling, with --temperature")
    parser.add_argument("--max-turns", type=int, default=MAX_TURNS, help="model calls a task may take")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="seconds a task may take")
    parser.add_argument("--list", action="store_true", help="print the tasks' names and prompts")
    parser.add_argument("--json", action="store_true", help="print one object with each task's record")
    return parser


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code. Failed tasks are a result, not an error."""
    options = _parser().parse_args(list(argv))
    chosen = chosen_tasks(options.tasks)
    if options.list:
        sys.stdout.write("".join(f"{family}/{task.name}\t{task.prompt}\n" for family, task in chosen))
        return EXIT_DONE
    options.cwd = Path.cwd()
    given = prepare(options, os.environ)
    shown = asyncio.run(_measure(options, given, chosen))
    sys.stdout.write(shown + "\n")
    return EXIT_DONE


async def _measure(options: argparse.Namespace, given: Setup, chosen: Sequence[tuple[str, Task]]) -> str:
    own = given.settings
    settings = Settings(
        model=own.model,
        backend=own.backend,
        endpoint=own.endpoint,
        api_key=own.api_key,
        small_model=own.small_model,
        edit_menu=own.edit_menu,
        edit_menus=own.edit_menus,
        permission_mode="auto",
        max_turns=options.max_turns,
    )
    sampling = None
    if options.temperature is not None:
        sampling = SamplingParams(temperature=options.temperature, seed=options.seed)
    model = await open_model(own, given.places, lambda _: None)
    try:
        records = await run_tasks(chosen, settings, given.places, KeptModel(model, sampling), options.timeout)
        if not options.json:
            return table(model.name, records)
        return json.dumps(
            {"model": model.name, "families": summary(records), "tasks": [asdict(record) for record in records]},
            ensure_ascii=False,
        )
    finally:
        await model.aclose()
