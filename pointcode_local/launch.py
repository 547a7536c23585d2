"""Starts a front end from parsed options."""

from __future__ import annotations

import argparse
import asyncio
import codecs
import logging
import os
import sys
from pathlib import Path

from pointcode_local.compose import Setup, prepare
from pointcode_local.config import find_places
from pointcode_local.engine.errors import EngineError
from pointcode_local.exits import UsageError
from pointcode_local.frontend import HostError
from pointcode_local.host import AppHost
from pointcode_local.local_models import exit_code_of
from pointcode_local.open_session import SessionChoice
from pointcode_local.piped import CUT_TO_FIT, PipedInput, as_context, is_piped
from pointcode_local.waiting import StderrLines


def _choice(options: argparse.Namespace) -> SessionChoice:
    return SessionChoice(options.continue_, options.resume or "", options.fork or "")


class _Inert(logging.Formatter):
    """Messages may quote what a server said: nothing in them may work on the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        from pointcode_local.render import plain

        return plain(super().format(record))


def run_scripted(options: argparse.Namespace) -> int:
    """`pointcode -p`: play one prompt and print its result."""
    from pointcode_local.headless import Output, read_prompt

    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_Inert("pointcode: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown])
    setup = prepare(options, os.environ)
    prompt = read_prompt(options.print_prompt)
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    output = Output(os.dup(1))
    os.dup2(2, 1)  # whatever else prints goes to stderr: stdout belongs to the result
    return asyncio.run(_scripted(options, setup, prompt, output))


async def _scripted(options: argparse.Namespace, setup: Setup, prompt: str, output: object) -> int:
    from pointcode_local.headless import Output, run_headless

    assert isinstance(output, Output)
    told = StderrLines()
    show = told.line
    for note in setup.settings.ignored:
        show(f"pointcode: {note}")
    host = AppHost(setup, _choice(options), interactive=False)
    piped = PipedInput(0, must_come=options.reads_stdin) if options.print_prompt != "-" and is_piped(0) else None
    try:
        prompt = host.expanded(prompt)
        agent = await host.open(told.opening)
        text = await piped.text(lambda why: show(f"pointcode: {why}")) if piped is not None else ""
        if text.strip() and not host.attach("standard input", as_context(text)):
            show(f"pointcode: {CUT_TO_FIT}")
        for problem in host.problems:
            show(f"pointcode: {problem}")
        if warning := host.sandbox_warning():
            show(f"pointcode: {warning}")
        return await run_headless(
            agent,
            prompt,
            session_id=host.info.session_id,
            output_format=options.output_format,
            output=output,
            told=told,
        )
    except HostError as error:
        raise UsageError(str(error)) from error
    except EngineError as error:
        show(f"pointcode: {error}")
        return exit_code_of(error)
    finally:
        await host.close()


def _log_to(path: Path) -> None:
    """Warnings go to a file; where that cannot be, they are lost: the screen belongs to the front end."""
    logging.raiseExceptions = False  # else a full disk would be told on the screen, with a traceback
    try:
        handler: logging.Handler = logging.FileHandler(path)
    except OSError:
        handler = logging.NullHandler()
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def _writes_utf8() -> bool:
    """Whether the locale lets the full screen's lines and marks through; Textual writes to the standard error."""
    return all(codecs.lookup(stream.encoding).name == "utf-8" for stream in (sys.stdout, sys.__stderr__ or sys.stderr))


def run_interactive(options: argparse.Namespace) -> int:
    """`pointcode`: the full-screen interface, or the line mode with --plain."""
    if not options.plain and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError('no terminal: give the prompt with -p ("-p -" reads it from stdin)')
    setup = prepare(options, os.environ)
    try:
        setup.places.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"{setup.places.state} cannot be made: {error.strerror}") from error
    _log_to(setup.places.state / "pointcode.log")
    host = AppHost(setup, _choice(options), interactive=True)
    history_path = setup.places.state / "prompts.jsonl"
    if not options.plain and not _writes_utf8():
        print(f"pointcode: line mode, since the terminal is said to take {sys.stdout.encoding} only", file=sys.stderr)
        options.plain = True
    if options.plain or os.environ.get("TERM") == "dumb":
        from pointcode_local.plain import run_plain

        return run_plain(
            host, prompt=options.prompt or "", history_path=history_path, vi_keys=setup.settings.keys == "vi"
        )
    from pointcode_local.tui import run_tui

    return run_tui(
        host,
        prompt=options.prompt or "",
        theme=setup.settings.theme,
        bell=setup.settings.bell,
        history_path=history_path,
        vi_keys=setup.settings.keys == "vi",
    )


def run_acp(options: argparse.Namespace) -> int:
    """`pointcode acp`: serve an editor; each of its sessions has the settings of its own folder."""
    from pointcode_local import acp
    from pointcode_local.hosts import AppHosts

    def prepare_in(folder: Path) -> Setup:
        return prepare(argparse.Namespace(**{**vars(options), "cwd": folder}), os.environ)

    return acp.run_acp(AppHosts(prepare_in, find_places(os.environ)))
