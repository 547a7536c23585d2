"""The small commands: config, sessions, model, doctor. Each takes parsed options and returns an exit code."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pointcode_local import config as configuration
from pointcode_local.checkpoints import Checkpoints
from pointcode_local.config import ConfigError, Places, Settings, find_places
from pointcode_local.config_write import remove_value, write_value
from pointcode_local.engine.errors import EngineError
from pointcode_local.events import AgentEvent, AssistantMessage, Steered, ToolFinished, TurnStarted
from pointcode_local.exits import EXIT_ERROR, EXIT_USAGE, UsageError, complain
from pointcode_local.records import to_line, to_record
from pointcode_local.render import plain
from pointcode_local.session import SessionError, SessionStore
from pointcode_local.settings_help import MEANINGS
from pointcode_local.surrogates import without_surrogates
from pointcode_local.trace_file import note_trace

BENCHES = ("decode", "prefill", "serve", "schedule", "turn", "drafts")
BENCH_HELP = """Measure this machine; `pointcode bench NAME --help` tells the options of one.

  decode    tokens per second of a model, against what the memory can give
  drafts    what guessed tokens gain
  prefill   how fast prompts are read (a Hopper GPU)
  schedule  the wave orders against each other (a Hopper GPU)
  serve     the server under a trace of requests
  turn      coding tasks played through the agent, and judged"""


def _say(text: str) -> None:
    """A line of standard output. On a terminal nothing in it acts: it may hold what a model or a file said."""
    shown = plain(text) if sys.stdout.isatty() else without_surrogates(text)
    sys.stdout.write(shown + "\n")


def _say_record(record: dict[str, Any]) -> None:
    sys.stdout.write(to_line(record).decode())


# ----------------------------------------------------------------------------------------------- config
def config(options: argparse.Namespace) -> int:
    """`pointcode config [get [KEY] | set KEY VALUE | unset KEY | path | trust]`."""
    places = find_places(os.environ)
    try:
        match options.action:
            case "path":
                return _config_path(options, places)
            case "trust":
                return _config_trust(options, places)
            case "set":
                return _config_set(options, places)
            case "unset":
                return _config_unset(options, places)
            case _:
                return _config_get(options, places)
    except ConfigError as error:
        return complain(error, EXIT_USAGE)
    except BrokenPipeError:
        raise
    except OSError as error:
        return complain(f"{error.filename or places.config}: {error.strerror}", EXIT_USAGE)


def _config_get(options: argparse.Namespace, places: Places) -> int:
    flags = {name: getattr(options, name) for name in ("model", "backend", "endpoint")}
    settings = configuration.load_settings(places, options.cwd, os.environ, flags)
    rows = configuration.shown_values(settings)
    if options.key is not None:
        rows = [row for row in rows if row[0] == options.key]
        if not rows:
            raise ConfigError(f"unknown key {options.key!r}{configuration.nearest_key(options.key)}")
    for key, value, origin in rows:
        _say(f"{key} = {value}  # {origin}")
    for note in settings.ignored:
        _say(f"# {note}")
    if options.key is None:
        _say_always(options.cwd, places)
    _say(f"# {MEANINGS[options.key]}" if options.key else "# `pointcode help config` tells what each of them means")
    return 0


def _say_always(cwd: Path, places: Places) -> None:
    """What the person answered "always" to in this folder, and where to take that back."""
    from pointcode_local.policy import AlwaysRules, always_file

    always = AlwaysRules(always_file(places))
    if rules := always.of(cwd):
        _say(f'# you said "always" here to what follows; to take one back delete its line in {always.path}')
        for rule in rules:
            _say(f"#   {rule}")


def _config_set(options: argparse.Namespace, places: Places) -> int:
    if options.key is None or options.value is None:
        raise ConfigError("usage: pointcode config set KEY VALUE")
    from pointcode_local.policy import rule_problem

    write_value(places, options.key, options.value, rule_problem)
    _say(f"{options.key} = {options.value}  (in {places.user_file})")
    return 0


def _config_unset(options: argparse.Namespace, places: Places) -> int:
    if options.key is None:
        raise ConfigError("usage: pointcode config unset KEY")
    was_set = remove_value(places, options.key)
    _say(f"{options.key} is {'no longer' if was_set else 'not'} set in {places.user_file}")
    return 0


def _config_path(options: argparse.Namespace, places: Places) -> int:
    _say(str(places.user_file))
    project = configuration.find_project_file(options.cwd, places)
    if project is not None:
        _say(f"{project}  ({'trusted' if configuration.is_trusted(project, places) else 'not trusted'})")
    return 0


def _config_trust(options: argparse.Namespace, places: Places) -> int:
    project = configuration.find_project_file(options.cwd, places)
    if project is None:
        raise ConfigError(f"no {configuration.PROJECT_FILE} in {options.cwd} or above")
    configuration.trust(project, places)
    _say(f"trusted {project} as it is now; a change to it asks for trust again")
    return 0


# ----------------------------------------------------------------------------------------------- sessions
def sessions(options: argparse.Namespace) -> int:
    """`pointcode sessions [list | show ID | rm ID…]`."""
    places = find_places(os.environ)
    store = SessionStore(places.state / "sessions")
    try:
        if options.action == "list":
            return _list_sessions(options, store)
        if not options.ids:
            raise UsageError(f"usage: pointcode sessions {options.action} ID")
        for session_id in options.ids:
            if options.action == "show":
                _show_session(store.read(session_id), as_json=options.json)
            else:
                removed = store.remove(session_id)
                Checkpoints(places.state / "checkpoints" / removed.stem).remove()
                _say(f"removed {removed.stem}")
    except SessionError as error:
        return complain(error, EXIT_USAGE)
    return 0


def _list_sessions(options: argparse.Namespace, store: SessionStore) -> int:
    found = store.list(None if options.all else options.cwd)
    if not found and not options.json:
        where = "" if options.all else f" of {options.cwd} (--all lists those of all folders)"
        print(f"There are no sessions{where}.", file=sys.stderr)
    for info in found:
        if options.json:
            _say_record(asdict(info))
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated_s))
        where = f"  {info.cwd}" if options.all else ""
        _say(f"{info.id}  {when}{where}  {info.title or '(nothing was said)'}")
    return 0


def _show_session(events: list[AgentEvent], *, as_json: bool) -> None:
    for event in events:
        if as_json:
            _say_record(to_record(event))
            continue
        match event:
            case TurnStarted(prompt) | Steered(prompt):
                _say(f"\n> {prompt}\n")
            case AssistantMessage() if event.text:
                _say(event.text)
            case ToolFinished():
                state = "denied" if event.denied else "error" if event.is_error else "ok"
                _say(f"[{event.name} {json.dumps(event.arguments, ensure_ascii=False)[:200]}: {state}]")
            case _:
                pass


# ----------------------------------------------------------------------------------------------- engine
def model(options: argparse.Namespace) -> int:
    """`pointcode model list | pull [NAME] | info [NAME] | verify [NAME]`."""
    from pointcode_local.local_models import run_command

    return run_command(options, options.model or "")


def doctor(options: argparse.Namespace) -> int:
    """`pointcode doctor`."""
    from pointcode_local.engine.doctor import Fact, examine
    from pointcode_local.local_models import describe

    settings, problems = Settings(), list[Fact]()
    flags = {name: getattr(options, name) for name in ("model", "backend", "endpoint")}
    try:
        settings = configuration.load_settings(find_places(os.environ), options.cwd, os.environ, flags)
    except ConfigError as error:
        problems.append(Fact("settings", "missing", str(error), "`pointcode config path` names the files"))
    find_server = (lambda: asyncio.run(_describe_server(settings))) if settings.endpoint else None
    facts = examine(lambda: describe(settings.model), _describe_sandbox, find_server=find_server)
    for fact in (*facts, *problems):
        if options.json:
            _say_record(asdict(fact))
            continue
        mark = {"good": "ok  ", "poor": "poor", "missing": "none"}[fact.verdict]
        _say(f"{mark}  {fact.topic:<10} {fact.text}" + (f"\n                  {fact.advice}" if fact.advice else ""))
    return 0


async def _describe_server(settings: Settings) -> str:
    """What the server of the settings has; raises EngineError when it does not tell."""
    from pointcode_local.endpoint import EndpointModel

    model = EndpointModel(settings.endpoint, model=settings.model, api_key=settings.api_key)
    try:
        await model.open()
        if not model.is_known:
            raise EngineError(f"{settings.endpoint} does not answer, or does not tell its models")
        return f"{settings.endpoint}: {model.name}, {model.context_tokens:,} tokens of context"
    finally:
        await model.aclose()


def _describe_sandbox() -> str:
    from pointcode_local.tools.sandbox import sandbox_status

    status = sandbox_status()
    if status.kind == "none":
        raise LookupError(status.text)
    return status.text.removeprefix("sandbox: ")


def bench(argv: Sequence[str]) -> int:
    """`pointcode bench NAME …`: hands over to `engine.bench.NAME` (`turnbench.turn`), which knows its own options."""
    from pointcode_local.engine import bench as benches
    from pointcode_local.local_models import NO_ENGINE

    names = [module.name for module in pkgutil.iter_modules(benches.__path__) if module.name in BENCHES]
    usage = f"usage: pointcode bench {'|'.join((*names, 'turn'))} …"
    if argv[:1] in (["-h"], ["--help"]):
        _say(f"{usage}\n\n{BENCH_HELP}")
        return 0
    if not argv or argv[0] not in (*names, "turn"):
        raise UsageError(usage)
    package = "pointcode_local.turnbench" if argv[0] == "turn" else benches.__name__
    try:
        module: Any = importlib.import_module(f"{package}.{argv[0]}")
    except ImportError as error:
        return complain(f"{NO_ENGINE} ({error})", EXIT_ERROR)
    try:
        code = int(module.main(list(argv[1:])))
        if argv[0] == "decode":
            note_trace(argv[1:], find_places(os.environ).state)
        return code
    except EngineError as error:
        return complain(error, EXIT_ERROR)
