"""Everything a command line might run, for rules that forbid: read from the tree-sitter-bash parse, through wrappers,
substitutions, functions and nested shells. It would rather name too much than too little."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from .rules import command_matches, fixed_prefix
from .shell_given import completed, given, inner
from .shell_names import DATA_COMMANDS, INTERPRETERS, SHELLS, WRAPPERS
from .shell_words import quoted

MAX_DEPTH = 6
_PLACERS = frozenset({"tee", "cp", "mv", "ln", "install"})  # they give a file its name by their words
MAX_NESTED = 1000  # texts within words that are read as commands
CODE_FLAG = re.compile(r"-[A-Za-z]*[ceE]|--(command|eval|exec|print)|-lc|-S")


@dataclass(slots=True)
class Reading:
    """What was found. `commands` are word lists (a word that cannot be known stands as it is written and ends with
    U+0000); `words` every literal word and redirection target; `writes` the targets of output redirections; `unsure`
    why not all could be known; `texts` embedded program texts; `said` source that is mere data (what `echo` prints, a
    commit message, a file written by a here-document)."""

    commands: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    words: list[str] = field(default_factory=list[str])
    writes: list[str] = field(default_factory=list[str])
    unsure: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])
    n_nested: int = 0


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def read_tree(line: str) -> Reading:
    """Read a command line and all that is nested in it."""
    reading = Reading()
    _read(line, reading, 0)
    if _runs_written(reading):  # then nothing of it is mere data
        reading.texts.append(line)
        reading.said.clear()
    return reading


def _runs_written(reading: Reading) -> bool:
    """Does the line run a file that it writes? Only the names without their folders are looked at."""
    placed = [word for words in reading.commands if base_name(words[0]) in _PLACERS for word in words[1:]]
    written = {_last(name) for name in (*reading.writes, *placed)}
    for words in reading.commands:
        name = base_name(words[0])
        operands = words if name in SHELLS | INTERPRETERS or name in ("source", ".") else words[:1]
        if not written.isdisjoint(map(_last, operands)):
            return True
    return False


def _last(word: str) -> str:
    return word.rstrip("\0").rsplit("/", 1)[-1]


def _read(line: str, reading: Reading, depth: int) -> None:
    if depth > MAX_DEPTH:
        reading.unsure.append("commands are nested too deeply")
        return
    source = line.encode("utf-8", "replace")
    root = _parser().parse(source).root_node
    if root.has_error:
        reading.unsure.append("the command line could not be parsed")
        for piece in re.split(r"[;&|\n(){}`]|\$\(", line):
            words = tuple(piece.replace("\\", "").replace("'", "").replace('"', "").split())
            if words:
                _command(words, reading, depth)
    for node in _walk(root):
        if node.type in ("command", "declaration_command", "unset_command"):
            words = tuple(_words(node))
            if depth == 0 and _only_says(node, words):
                reading.commands.append(words)
                reading.said.append(_text(node))
            else:
                _command(words, reading, depth)
        elif node.type == "file_redirect":
            _redirect(node, reading)
        elif node.type == "heredoc_body" and depth == 0 and _is_written(node):
            reading.said.append(_text(node))
        elif node.type == "heredoc_body":
            reading.texts.append(_text(node))
            _nested(_text(node), reading, depth)
        elif node.type == "herestring_redirect":
            text = "".join(_value(child)[0] for child in node.named_children)
            reading.texts.append(text)
            _nested(text, reading, depth)
        elif node.type == "variable_assignment":
            value = node.child_by_field_name("value")
            if value is not None:
                text = _value(value)[0]
                reading.words.append(text)
                _inner(text, reading, depth)  # GIT_SSH_COMMAND, PAGER and their like


def _only_says(node: Node, words: tuple[str, ...]) -> bool:
    """Does a command just print its words, or take them as a message, with nobody reading on?"""
    if not words or words[0] not in ("echo", "printf", "git") or _is_read_on(node):
        return False
    if words[0] == "printf" and words[1:2] == ("-v",):  # into a variable, whose subscript may run something
        return False
    return words[0] != "git" or (words[1:3] == ("commit", "-m") and len(words) == 4)


def _is_read_on(node: Node) -> bool:
    """Does the output go into a pipe or into another command's words?"""
    above = node.parent
    while above is not None:
        if above.type in (
            "pipeline",
            "command_substitution",
            "process_substitution",
            "heredoc_redirect",
            "function_definition",
        ):
            return True
        above = above.parent
    return False


def _is_written(body: Node) -> bool:
    """Does a here-document become the text of a file, by `cat` or `tee`?"""
    redirect = body.parent
    statement = redirect.parent if redirect is not None else None
    if redirect is None or statement is None or _is_read_on(statement):
        return False
    plain = {"heredoc_start", "heredoc_body", "heredoc_end", "file_redirect"}
    command = statement.child_by_field_name("body")
    if command is None or any(child.type not in plain for child in redirect.named_children):
        return False
    return next(iter(_words(command)), "") in ("cat", "tee")


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.named_children)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _words(command: Node) -> Iterator[str]:
    for child in command.children:
        if child.type in ("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect"):
            continue
        if child.type == "command_name":
            child = child.named_children[0] if child.named_children else child
        value, known = _value(child)
        yield value if known else value + "\0"


def _value(node: Node) -> tuple[str, bool]:
    """A word's value as far as it can be known, and whether it is wholly known."""
    text = _text(node)
    match node.type:
        case "raw_string":
            return text[1:-1], True
        case "ansi_c_string":
            return _ansi(text[2:-1]), True
        case "string" | "translated_string":
            inner = text[text.index('"') + 1 : -1]
            return re.sub(r'\\(["\\$`\n])', r"\1", inner), not re.search(r"(?<!\\)[$`]", inner)
        case "concatenation":
            parts = [_value(child) for child in node.children]
            return "".join(value for value, _ in parts), all(known for _, known in parts)
        case "word" | "number" | "variable_name" | "extglob_pattern" | "regex":
            known = not re.search(r"(?<!\\)[*?\[{$`]", text)
            return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL), known
        case _ if not node.is_named:
            return text, True
        case _:
            return text, False


def _ansi(text: str) -> str:
    try:
        return codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
    except UnicodeDecodeError:
        return text


def _redirect(node: Node, reading: Reading) -> None:
    target = node.child_by_field_name("destination")
    if target is None:
        return
    value, known = _value(target)
    operator = "".join(_text(child) for child in node.children if not child.is_named)
    reading.words.append(value)
    if ">" in operator and not (operator.endswith("&") and value.isdigit()):
        reading.writes.append(value)
        if not known:
            reading.unsure.append("it writes to a file whose name is not known")


def _nested(text: str, reading: Reading, depth: int) -> None:
    if not text.strip():
        return
    reading.n_nested += 1
    if reading.n_nested > MAX_NESTED:
        if reading.n_nested == MAX_NESTED + 1:
            reading.unsure.append("it holds too many commands within words")
        return
    _read(text, reading, depth + 1)


def base_name(word: str) -> str:
    """A command's name without its folder and version digits (`/usr/bin/python3.11` is `python`)."""
    name = word.rstrip("\0").rsplit("/", 1)[-1]
    return re.sub(r"[\d.]+$", "", name) or name


def _command(words: tuple[str, ...], reading: Reading, depth: int) -> None:
    if not words:
        return
    reading.words += [word.rstrip("\0") for word in words]
    reading.commands.append(words)
    if words[0].endswith("\0"):
        reading.unsure.append("the command's name is only known when it runs")
    name = base_name(words[0])
    if name in WRAPPERS and depth <= MAX_DEPTH:
        _unwrap(name, words, reading, depth)
    if name in INTERPRETERS or name in WRAPPERS:
        reading.texts += words[1:]
    if name in SHELLS or name in ("eval", "source", "."):
        _shell(words, reading)
    elif name in ("at", "batch"):
        reading.unsure.append(f"{name} runs what it reads")
    elif name in DATA_COMMANDS:
        for text in given(name, [word.rstrip("\0") for word in words[1:]]):
            reading.texts.append(text)
            _inner(text, reading, depth)
    elif name not in INTERPRETERS:
        for word in words[1:]:
            _inner(word.rstrip("\0"), reading, depth)


def _inner(word: str, reading: Reading, depth: int) -> None:
    """Take a word of several, or a part of it, for the command that a program makes of it."""
    if re.search(r"\s", word):
        for text in dict.fromkeys(inner(word)):
            _nested(text, reading, depth)


def _unwrap(name: str, words: tuple[str, ...], reading: Reading, depth: int) -> None:
    """Every tail of a wrapper's words may be the command it runs."""
    for start in range(1, len(words)):
        tail = words[start:]
        if not tail[0].startswith("-"):
            reading.commands.append(tail)
            if tail[0].endswith("\0"):
                reading.unsure.append(f"{name} runs a command that is only known when it runs")
        if base_name(tail[0]) in SHELLS:
            _shell(tail, reading)
            if name in ("xargs", "parallel"):
                reading.unsure.append(f"{name} gives a shell what it reads")
    if name in ("xargs", "parallel") and (command := completed(words)):
        reading.commands.append((*command, "\0"))
    if name == "eval":
        _nested(" ".join(word.rstrip("\0") for word in words[1:]), reading, depth)
    for word in words[1:]:
        if re.search(r"[\s;|&]", word):
            _nested(word.rstrip("\0"), reading, depth)


def _shell(words: tuple[str, ...], reading: Reading) -> None:
    if any(word.endswith("\0") for word in words[1:]):
        reading.unsure.append(f"{words[0]} gets a text that is only known when it runs")
    if len(words) == 1 or all(word.startswith("-") and not CODE_FLAG.fullmatch(word) for word in words[1:]):
        reading.unsure.append(f"{words[0]} runs what it reads")


def candidates(words: tuple[str, ...]) -> Iterator[str]:
    """The texts under which a rule may know a command: as it is, without its folder, without leading options."""
    plain = tuple(quoted(word.rstrip("\0")) for word in words)
    names = dict.fromkeys((plain[0], plain[0].rsplit("/", 1)[-1]))
    for name in names:
        yield " ".join((name, *plain[1:]))
        if len(plain) > 1 and plain[1].startswith("-"):
            for start in range(2, len(plain)):
                yield " ".join((name, *plain[start:]))
        without = [word for word in plain[1:] if not word.startswith("-")]
        yield " ".join((name, *without))


def may_match(pattern: str, words: tuple[str, ...]) -> bool:
    """Might these words be a command that a rule's pattern names?"""
    if any(command_matches(pattern, text) for text in candidates(words)):
        return True
    unknown = next((at for at, word in enumerate(words) if word.endswith("\0")), None)
    if unknown is None or unknown == 0:
        return False
    known = next(candidates(words[:unknown])) + " "
    prefix = fixed_prefix(pattern)
    return prefix.startswith(known) or known.startswith(prefix)
