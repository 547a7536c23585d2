"""The command line: what can be asked for, and which part does it. Imports nothing heavy until it is needed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pointcode_local import __version__
from pointcode_local.events import MODES
from pointcode_local.exits import EXIT_CANCELLED, EXIT_ERROR, EXIT_USAGE, UsageError, complain

if TYPE_CHECKING:
    from pointcode_local.forms import Form

BACKENDS = ("auto", "megakernel", "cpu", "torch")
FORMATS = ("text", "json", "stream-json")
COMMANDS = ("acp", "serve", "model", "config", "sessions", "doctor", "bench", "completion", "help")
_WITH_VALUE = (
    *("--model", "--backend", "--endpoint", "--cwd", "--output-format", "--max-turns", "--allowed-tools"),
    *("--permission-mode", "--resume", "--fork", "--host", "--port", "--api-key", "--alias", "--allowed-host"),
)
_WITHOUT_FOLDER = ("completion", "help", "bench")
_PROMPT_FLAGS = ("-p", "--prompt")
_HELP = """\
commands:
  pointcode [PROMPT]                          the full-screen interface (--plain: line mode)
  pointcode -p PROMPT                         scripted: result on stdout, progress on stderr; reads what is piped in
  pointcode acp                               for editors: the Agent Client Protocol on stdin and stdout
  pointcode serve                             OpenAI- and Anthropic-compatible server on 127.0.0.1:8000
  pointcode model list|pull|info|verify       models
  pointcode config [get|set|unset|path|trust] settings, with where each value came from
  pointcode sessions [list|show|rm]           stored conversations
  pointcode bench decode|prefill|…            measure this machine (--help after the name tells its options)
  pointcode doctor                            what this machine has
  pointcode completion bash|zsh|fish          completions for a shell: source <(pointcode completion bash)
  pointcode help [COMMAND]                    the manual

exit codes: 0 done, 1 a failure, 2 usage or settings, 3 a call was refused, 4 a limit ended the turn or the model gave
up, 75 a failure worth a retry, 130 stopped by a signal (`pointcode help` has more)
"""


def run(argv: Sequence[str]) -> int:
    """Run a command line (without the program's name); returns the exit code."""
    try:
        return _run(list(argv))
    except UsageError as error:
        return complain(error, EXIT_USAGE)
    except SystemExit as stop:  # argparse: --help, --version, and wrong arguments
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_CANCELLED
    except BrokenPipeError:  # the reader of a list went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_ERROR


def _run(argv: list[str]) -> int:
    prompt, rest = take_prompt(argv)
    at = None if prompt is not None else _command_index(rest)
    if at is not None:
        return _run_command(rest[at], rest[:at] + rest[at + 1 :])
    options = _main_options(rest)
    options.reads_stdin = prompt is not None and options.prompt == "-"
    if prompt is not None and options.prompt and not options.reads_stdin:
        raise UsageError(f"two prompts: {prompt!r} and {options.prompt!r}")
    options.print_prompt = prompt
    options.cwd = _folder(options.cwd)
    _forbid_two_sessions(options)
    from pointcode_local import launch

    if prompt is not None:
        return launch.run_scripted(options)
    return launch.run_interactive(options)


def _main_options(argv: list[str]) -> argparse.Namespace:
    """The options of the two main forms. Raises UsageError for what can only be a slip."""
    parser = main_parser()
    options, left = parser.parse_known_args(argv)
    if left and not any(word.startswith("-") for word in left):
        raise UsageError(f'more than one word: put the prompt in quotes, "{options.prompt} {" ".join(left)}"')
    if left:
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if "--" not in argv and (meant := get_close_matches(options.prompt or "", COMMANDS, 1, 0.8)):
        raise UsageError(f"no command {options.prompt!r}; did you mean {meant[0]}? (behind -- it is a prompt)")
    return options


def take_prompt(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of `-p`, whatever it looks like, and the other arguments. `-p` alone at the end means stdin."""
    rest: list[str] = []
    prompt: str | None = None
    i = 0
    while i < len(argv):
        word = argv[i]
        i += 1
        if word == "--":
            return prompt, [*rest, word, *argv[i:]]
        if word in _PROMPT_FLAGS:
            found = argv[i] if i < len(argv) else "-"
            i += 1
        elif word.startswith("--prompt="):
            found = word.removeprefix("--prompt=")
        else:
            rest.append(word)
            if word in _WITH_VALUE and i < len(argv):
                rest.append(argv[i])
                i += 1
            continue
        if prompt is not None:
            raise UsageError("-p was given twice")
        prompt = found
    return prompt, rest


def _command_index(argv: Sequence[str]) -> int | None:
    """Where the subcommand stands: the first word that is neither an option nor an option's value."""
    skip = False
    for i, word in enumerate(argv):
        if word == "--":
            return None
        if skip:
            skip = False
        elif word in _WITH_VALUE:
            skip = True
        elif not word.startswith("-"):
            return i if word in COMMANDS else None
    return None


def _folder(text: str | None) -> Path:
    path = Path(text or ".").expanduser()
    try:
        resolved = path.resolve(strict=True)
    except OSError as error:
        raise UsageError(f"--cwd {text or '.'}: {error.strerror}") from error
    if not resolved.is_dir():
        raise UsageError(f"--cwd {text}: not a folder")
    return resolved


def _forbid_two_sessions(options: argparse.Namespace) -> None:
    given = [
        name
        for name, value in (("--continue", options.continue_), ("--resume", options.resume), ("--fork", options.fork))
        if value or value == ""
    ]
    if "" in (options.resume, options.fork):
        raise UsageError(f"{given[-1]} needs the id of a session; `pointcode sessions list` shows those there are")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other")


class _Group(Protocol):
    def add_argument(self, *names: str, **how: Any) -> Any: ...


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _port(text: str) -> int:
    value = _whole(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {text}")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_session(group: _Group) -> None:
    group.add_argument("--max-turns", type=_positive, metavar="N", help="stop a prompt after N model calls")
    group.add_argument("--allowed-tools", type=_names, action="extend", metavar="A,B", help="offer only these tools")
    group.add_argument("--permission-mode", choices=MODES, help="what runs without asking (default: ask)")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with words that nobody has looked at yet."""

    def error(self, message: str) -> NoReturn:
        from pointcode_local.render import plain

        super().error(plain(message))


def _add_common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("common")
    group.add_argument("--model", metavar="PATH|ID|URL", help="the model to run, or its name at the endpoint")
    group.add_argument("--backend", choices=BACKENDS, help="what decodes (default: the best this machine has)")
    group.add_argument("--endpoint", metavar="URL", help="use this OpenAI-compatible server instead of the own engine")
    group.add_argument("--cwd", metavar="DIR", help="the folder to work in")


def main_parser() -> argparse.ArgumentParser:
    """The parser of the two main forms (`-p` and its value are taken out before)."""
    parser = _Parser(
        "pointcode",
        usage="pointcode [options] [PROMPT]\n       pointcode -p PROMPT [options]\n       pointcode COMMAND …",
        description="A terminal coding assistant whose model runs in the same process.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="the first message (after `--` when it begins with -)"
    )
    parser.add_argument("--version", action="version", version=f"pointcode {__version__}")
    scripted = parser.add_argument_group("scripted")
    scripted.add_argument(
        "-p",
        metavar="PROMPT",
        dest="print_prompt",
        help='run this prompt and exit, with what is piped in; "-" reads the prompt itself',
    )
    scripted.add_argument("--output-format", choices=FORMATS, default="text", help="default: text")
    scripted.add_argument(
        "--json", dest="output_format", action="store_const", const="json", help="the same as --output-format json"
    )
    both = parser.add_argument_group("both")
    _add_session(both)
    both.add_argument("--continue", dest="continue_", action="store_true", help="go on with this folder's last session")
    both.add_argument("--resume", metavar="ID", help="go on with a session")
    both.add_argument("--fork", metavar="ID", help="start a new session from a copy of another one")
    both.add_argument("--plain", action="store_true", help="line mode instead of the full screen")
    _add_common(parser)
    return parser


# ----------------------------------------------------------------------------------------------- subcommands
def _run_command(name: str, argv: list[str]) -> int:
    if name == "bench":
        from pointcode_local import commands

        return commands.bench(argv)
    parser, handler = _command(name)
    options = parser.parse_args(argv)
    if name not in _WITHOUT_FOLDER and (name != "acp" or options.cwd is not None):  # an editor names a session's folder
        options.cwd = _folder(options.cwd)
    return handler(options)


def _command(name: str) -> _Command:
    """A command's parser and what it does."""
    makers: dict[str, Callable[[], _Command]] = {
        "acp": _acp_command,
        "serve": _serve_command,
        "config": _config_command,
        "sessions": _sessions_command,
        "model": _model_command,
        "doctor": _doctor_command,
        "completion": _completion_command,
        "help": _help_command,
        "bench": _bench_command,
    }
    parser, handler = makers[name]()
    if name not in _WITHOUT_FOLDER:
        _add_common(parser)
    return parser, handler


_Command = tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return _Parser(f"pointcode {name}", description=description, allow_abbrev=False)


def _serve_command() -> _Command:
    from pointcode_local import serve

    parser = _parser("serve", "Serve the model to other programs; a second `pointcode` on this machine attaches to it.")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; another one needs an API key")
    parser.add_argument("--port", type=_port, default=8000, help="default: 8000; 0 takes a free one")
    parser.add_argument("--api-key", metavar="KEY", help="what clients must send (default: POINTCODE_API_KEY, or none)")
    parser.add_argument("--alias", action="append", default=[], metavar="NAME", help="another name of the model")
    parser.add_argument("--allowed-host", action="append", default=[], metavar="NAME", help="a Host header to accept")
    return parser, serve.run


def _acp_command() -> _Command:
    from pointcode_local import launch

    parser = _parser("acp", "Serve an editor: the Agent Client Protocol, version 1, on standard input and output.")
    _add_session(parser.add_argument_group("sessions"))
    return parser, launch.run_acp


def _config_command() -> _Command:
    from pointcode_local import commands

    parser = _parser(
        "config", "Show and change settings. `trust` lets this project's file widen rights, as it now stands."
    )
    what = "show all or one, change one, take it out again, tell where the files are, trust the project's file"
    parser.add_argument("action", nargs="?", choices=("get", "set", "unset", "path", "trust"), default="get", help=what)
    parser.add_argument("key", nargs="?", metavar="SETTING", help="its name; `pointcode help config` lists them")
    parser.add_argument("value", nargs="?", metavar="VALUE", help="what to set it to; a list or table as in TOML")
    return parser, commands.config


def _sessions_command() -> _Command:
    from pointcode_local import commands

    parser = _parser("sessions", "Stored conversations of this folder.")
    parser.add_argument("action", nargs="?", choices=("list", "show", "rm"), default="list")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--all", action="store_true", help="list those of all folders")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    return parser, commands.sessions


def _model_command() -> _Command:
    from pointcode_local import commands

    parser = _parser("model", "Models: what is known and on disk, fetch, describe, check the bytes.")
    parser.add_argument("action", nargs="?", choices=("list", "pull", "info", "verify"), default="list")
    parser.add_argument("name", nargs="?", metavar="MODEL")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, commands.model


def _doctor_command() -> _Command:
    from pointcode_local import commands

    parser = _parser("doctor", "What this machine has: GPU, driver, compiler, sandbox, model, terminal.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, commands.doctor


def _bench_command() -> _Command:
    """For the manual and the completions: `bench` parses its own options."""
    from pointcode_local import commands

    parser = _parser("bench", "Measure this machine; `pointcode bench NAME --help` tells the options of one.")
    parser.add_argument("name", choices=commands.BENCHES)
    return parser, lambda options: commands.bench([options.name])


def _completion_command() -> _Command:
    from pointcode_local import completion

    def show(options: argparse.Namespace) -> int:
        print(completion.script(options.shell, forms()), end="")
        return 0

    parser = _parser("completion", "Print a shell's completion script: source <(pointcode completion bash)")
    parser.add_argument("shell", choices=completion.SHELLS)
    return parser, show


def _help_command() -> _Command:
    from pointcode_local import manual

    def show(options: argparse.Namespace) -> int:
        name = options.command or ""
        page = manual.page(forms(), name)
        print(manual.as_roff(page, name) if options.roff else manual.as_text(page), end="")
        return 0

    parser = _parser("help", "The manual of pointcode, or of one of its commands.")
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("--roff", action="store_true", help="for man: pointcode help --roff | man -l -")
    return parser, show


def forms() -> list[Form]:
    """Everything that can be typed, as data; the form without a command comes first."""
    from pointcode_local.config import known_keys
    from pointcode_local.forms import form_of

    words = {"SETTING": known_keys()}
    return [form_of("", main_parser(), words), *(form_of(name, _command(name)[0], words) for name in COMMANDS)]
