"""`pointcode help`: a manual page made from the argument parsers, as text or for `man`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pointcode_local import __version__
from pointcode_local.exits import EXIT_MEANINGS
from pointcode_local.forms import Argument, Form
from pointcode_local.settings_help import MEANINGS

WIDTH = 100
EXIT_STATUS = tuple((str(code), meaning) for code, meaning in EXIT_MEANINGS.items())
ENVIRONMENT = (
    ("POINTCODE_HOME", "holds settings, sessions and models in one folder, instead of the XDG folders"),
    ("POINTCODE_MODEL, POINTCODE_ENDPOINT, POINTCODE_API_KEY", "settings of these names; flags go before them"),
)
FILES = (
    ("config.toml in POINTCODE_HOME, else in the XDG configuration folder", "the person's settings"),
    (".pointcode/config.toml", "the project's settings; what widens rights counts after `pointcode config trust`"),
    ("AGENTS.md", "rules for the assistant, from the repository's root down to the working folder"),
)
EXAMPLES = (
    ("pointcode", "the full-screen interface in this folder"),
    ('pointcode -p "Explain main.py" --output-format json', "one prompt, the result as JSON"),
    (
        'git diff | pointcode -p "Review this change."',
        "what is piped in goes with the prompt, as far as it fits the context; a pipe that says nothing for 3 s "
        "is not waited for, unless a - follows the prompt; in a loop that reads a list give it </dev/null",
    ),
    ("pointcode -p - < order.txt", "the prompt itself from standard input"),
    ("pointcode acp", "what an editor starts"),
    ("source <(pointcode completion bash)", "completions for this shell"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, and (term, meaning) pairs below them."""

    title: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[tuple[str, str], ...] = ()


def page(forms: Sequence[Form], name: str) -> list[Section]:
    """The manual of the program (`name` ""), or of one of its commands."""
    form = next(form for form in forms if form.name == name)
    title = f"pointcode {name}".strip()
    sections = [
        Section("NAME", (f"{title} - {form.summary}",)),
        Section("SYNOPSIS", (_synopsis(form),)),
    ]
    if not name:
        commands = [(f"pointcode {f.name}", f.summary) for f in forms if f.name]
        sections.append(Section("COMMANDS", (), tuple(commands)))
    arguments = [(_words(a), a.help) for a in (*form.positionals, *form.options)]
    sections.append(Section("OPTIONS", (), tuple(arguments)))
    if name == "config":
        sections.append(Section("SETTINGS", (), tuple(MEANINGS.items())))
    if not name:
        sections += [
            Section("EXIT STATUS", (), EXIT_STATUS),
            Section("ENVIRONMENT", (), ENVIRONMENT),
            Section("FILES", (), FILES),
            Section("EXAMPLES", (), EXAMPLES),
        ]
    return sections


def _synopsis(form: Form) -> str:
    if not form.name:
        return "pointcode [OPTIONS] [PROMPT] | pointcode -p PROMPT [OPTIONS] | pointcode COMMAND [OPTIONS]"
    words = [f"[{a.value}{' …' if a.repeats else ''}]" for a in form.positionals]
    return " ".join(["pointcode", form.name, *words, "[OPTIONS]"])


def _words(argument: Argument) -> str:
    return f"{', '.join(argument.names)} {argument.value}".strip()


def as_text(sections: Sequence[Section], width: int = WIDTH) -> str:
    """The page for a terminal."""
    return "\n".join(line for section in sections for line in _text_lines(section, width)).rstrip("\n") + "\n"


def _text_lines(section: Section, width: int) -> Iterable[str]:
    yield section.title
    for paragraph in section.paragraphs:
        yield from textwrap.wrap(paragraph, width, initial_indent="    ", subsequent_indent="        ")
    for term, meaning in section.items:
        yield f"    {term}"
        yield from textwrap.wrap(meaning, width, initial_indent="        ", subsequent_indent="        ")
    yield ""


def as_roff(sections: Sequence[Section], name: str) -> str:
    """The page for `man`: `pointcode help --roff | man -l -`."""
    title = f"pointcode {name}".strip().replace(" ", "-").upper()
    lines = [f'.TH "{title}" 1 "" "pointcode {__version__}"']
    for section in sections:
        lines.append(f'.SH "{section.title}"')
        for paragraph in section.paragraphs:
            lines += [".PP", _roff(paragraph)]
        for term, meaning in section.items:
            lines += [".TP", f"\\fB{_roff(term)}\\fR", _roff(meaning) or "\\&"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text with roff's own characters made plain."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text
