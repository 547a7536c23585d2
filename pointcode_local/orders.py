"""What a prompt asks of a small model: new files, changed files, a renamed word, a command, or an answer.

A small model does what the form of its reply leads it to, so the form is chosen for it: by the verbs of the order and
by the names of files in it. What is in doubt is a question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["create", "change", "rename", "command", "question"]

_SUFFIX = re.compile(
    r"bat|c|cc|cfg|conf|cpp|cs|css|csv|env|go|h|hpp|html?|ini|java|jsx?|json|kt|lock|log|lua|m|md|mjs|php|pl|ps1|pyi?|r|rb|"
    r"rs|rst|scss|sh|sql|svg|swift|tex|toml|tsx?|tsv|txt|vue|xml|ya?ml|zig",
    re.IGNORECASE,
)
_BARE_NAMES = frozenset(
    {"Makefile", "Dockerfile", "LICENSE", "README", ".gitignore", ".dockerignore", "CMakeLists.txt"}
)
_QUOTED_MENTION = re.compile(r"""@["']([^"'\n]+)["']""")  # @"a name with spaces.md"
_WORD = re.compile(r"[^\s\"'`,;:()<>{}|*]+")
_ODD = re.compile(r"[\s\"'`,;:()<>{}|*]")  # in a name of a file: what would end it as a word of a prompt
_JOINT = "\u02ec"  # a letter that stands for them in between, of no name that there is
_QUOTED_NEW = re.compile(  # a "name with spaces.md" that is to be made
    r"\b(?:add|as|called|create|file|in|into|make|named|save|to|write)\s+"
    r"(?P<quote>[\"'`])(?P<name>[\w.-]+(?: [\w.-]+)+)(?P=quote)(?P<bare>)",
    re.IGNORECASE,
)
_POLITE = r"\W*(?:please\s+|(?:can|could|would|will) you\s+(?:please\s+)?)?(?:now\s+|also\s+|just\s+)?"
_CLAUSE = re.compile(r"[.;:!?](?=\s|$)|,\s|(?<!\s)\s+and\s+(?:then\s+)?|\n")
_CALLED = re.compile(r"\([^()\n]{0,200}\)")
_IN = re.compile(r"^\W*(?:in|inside|at|to|for|of)\s+(?:the\s+)?(?:file\s+)?\S+\s+", re.IGNORECASE)
_CREATE = re.compile(
    _POLITE + r"(?:add|create|draft|generate|i need|i want|implement|make|put|save|set up|start|write)\b", re.IGNORECASE
)
_CHANGE = re.compile(
    _POLITE
    + r"(?:add|append|change|convert|correct|debug|delete|edit|extend|fix|give|implement|improve|insert|let|make|"
    r"mend|modify|move|put|refactor|remove|rename|repair|replace|rewrite|set|simplify|swap|translate|turn|update|use|"
    r"write)\b",
    re.IGNORECASE,
)
_ASK = re.compile(
    r"^\W*(?:please\s+)?(?:analy[sz]e|are|audit|can|check|compare|could|count|describe|do|does|explain|find|has|have|how|"
    r"inspect|is|list|look|propose|read|recommend|review|say|search|show|should|suggest|summari[sz]e|tell|what|when|where|"
    r"which|who|whose|why|will|would)\b",
    re.IGNORECASE,
)
_TELLS = re.compile(  # what is to be made is the answer itself, unless it goes into a file
    _POLITE + r"(?P<verb>create|generate|give|make|prepare|write)\s+(?:me\s+|us\s+)?(?:an?\s+|some\s+|the\s+)?"
    r"(?:[\w-]+\s+){0,2}?(?:answer|description|essay|explanation|haiku|joke|list|outline|overview|poem|report|review|story|summary|"
    r"table(?!\s+of\s+contents))s?\b",
    re.IGNORECASE,
)
_INTO = re.compile(r"\b(?:in|to|into|as)\s+(?:the\s+)?(?:file\s+)?[@\"'`]*[\w./-]*\w\.\w+", re.IGNORECASE)
_NO_CHANGE = re.compile(  # "change nothing"; not "change nothing else"
    r"\b(?:(?:change|edit|fix|modify|touch|write)\s+nothing|(?:do not|don['\u2019]?t|never|without)\s+"
    r"(?:chang|edit|fix|modify|touch|writ)\w*\s+(?:anything|any\s+(?:code|files?)|it|the\s+(?:code|files?)))"
    r"(?:\s+yet)?(?=\s*(?:[.;,!]|$))",
    re.IGNORECASE,
)
_NAME = r"[@\"'`]*(?:[\w./*-]*\w\.\w+[\"'`]*|\S+/)"
_COMMAND = re.compile(
    _POLITE + r"(?:"
    r"(?:run|execute|install|compile|build|launch|chmod|copy|cp|mv|rm|mkdir)\s+\S"
    rf"|(?:delete|remove|erase|move|rename)\s+(?:the\s+|all\s+|every\s+)*(?:files?|folders?|director(?:y|ies))\b"
    rf"|(?:delete|remove|erase|move)\s+(?:the\s+|all\s+)*{_NAME}(?:\s|$)"
    r"|(?:make|create|add)\s+(?:an?\s+|the\s+)?(?:new\s+|empty\s+)*(?:folders?|director(?:y|ies))\b"
    r"|make\s+\S+\s+(?:executable|writable|read-?only)"
    r"|commit\s+(?:all|everything|it|my|the|these|this)\b"
    r")",
    re.IGNORECASE,
)
_ABOUT_FILE = re.compile(  # what a name behind it is surely the name of
    r"\b(?:check|describe|explain|how (?:do|does)|open|print|read|review|show|summari[sz]e|"
    r"what (?:do|does|is in)|what['\u2019]s in|why (?:do|does))\s+(?:me\s+)?(?:the\s+)?(?:file\s+)?[@\"'`]*",
    re.IGNORECASE,
)
_MAYBE_CODE = re.compile(r"[^/]+\.(?:c|go|h|js|log|m|r)", re.IGNORECASE)  # console.log, three.js
_COMMAND_QUESTION = re.compile(
    r"\bhow (?:many|much) (?:lines|words|bytes|characters|files|folders|space)\b|\bhow (?:big|large|long) is\b"
    r"|\b(?:checksum|md5|sha-?\d+|hash) (?:sum )?(?:of|for)\b|\b(?:md5|sha-?\d+)(?:sum| checksum)\b"
    r"|\bwhat (?:does|do|is|will) .{1,40}\b(?:print|output)s?\b|\bsize of\b|\bwhich (?:version|python)\b",
    re.IGNORECASE,
)
_ADD = _POLITE + r"(?:add|append|implement|insert|put|write)"
_TESTS = r"\s*(?:an?\s+|some\s+)?(?:unit\s+)?tests?(?:\s+(?:for|of)\s+\S+)?"
_ADD_TEST = re.compile(rf"{_ADD}\s{_TESTS}\b", re.IGNORECASE)
_RENAME = re.compile(_POLITE + r"rename\b.*\b(?:to|into|as)\b", re.IGNORECASE | re.DOTALL)
_RENAMED = re.compile(
    _POLITE + r"rename\s+(?:the\s+)?[@\"'`]*([^\s\"'`]+)[\"'`]*\s+(?:to|into|as)\s+[\"'`]*([^\s\"'`]+)", re.IGNORECASE
)
_WANTS_ANSWER = re.compile(r"\?|\b(?:tell|show|say|explain|report|what|which|how many|why)\b", re.IGNORECASE)
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*(?:_test|\.test|\.spec)\.\w+)$|(?:^|/)tests?/")

_FUNCTION_WORD = re.compile(
    r"an?|all|also|and|as|call(?:ed|s)?|class(?:es)?|constant|css|every(?:where)?|field|files?|functions?|in|into|is|its?|"
    r"keys?|methods?|of|parameter|the|this|to|uses|variable|where",
    re.IGNORECASE,
)
_NAMED_CODE = re.compile(r"\b(?:function|method|class) ([A-Za-z_]\w+)\b", re.IGNORECASE)
NO_NAME = re.compile(  # where a name could stand: "the function that …"
    r"an?|and|are|as|at|be|body|by|called?|calls?|can|definition|does|fails?|for|from|has|in|into|is|it|its|must|named?|needs?|of|"
    r"on|or|prints?|returns?|should|signature|so|such|takes?|that|the|then|there|this|to|used?|uses|when|where|which|will|"
    r"with|works?",
    re.IGNORECASE,
)
_POINTS_BACK = re.compile(r"\b(?:it|its|that|them|this|the \w+)\b", re.IGNORECASE)
_PART = re.compile(  # of a file: what is added when no file is named belongs into the one that was changed before
    r"\b(?:arguments?|class(?:es)?|comments?|constants?|docstrings?|functions?|imports?|lines?|methods?|parameters?|"
    r"type hints?|variables?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Order:
    """One step of a prompt. `targets` are the files to write, `shown` those to be read first, in the order named."""

    kind: Kind
    targets: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    wants_answer: bool = False


def one_word(text: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The text with each name that holds spaces, quotes or brackets as one word, and what these words stand for: names
    of files that are there, where they are quoted or end in a suffix, and new ones that are quoted."""
    stands_for: dict[str, str] = {}

    def word(found: re.Match[str]) -> str:
        name: str = found["name"] or found["bare"]
        stands_for[joined := _ODD.sub(_JOINT, name)] = name
        return found[0].replace(name, joined)

    bases = {path.rpartition("/")[2] for path in known}
    odd = sorted((name for name in {*known, *bases} if _ODD.search(name) and name in text), key=len, reverse=True)
    if odd:
        names, bare = ("|".join(map(re.escape, some)) for some in (odd, filter(_looks_like_file, odd)))
        quoted = rf"(?P<quote>[\"'`])(?P<name>{names})(?P=quote)"
        text = re.sub(rf"{quoted}|(?<![\w/-])(?P<bare>{bare or '(?!)'})(?![\w/-])", word, text)
    return _QUOTED_NEW.sub(lambda found: word(found) if _looks_like_file(found["name"]) else found[0], text), stands_for


def named_files(text: str, known: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that a text names: those that are there (a bare name finds its folder), and new ones."""
    text, stands_for = one_word(text, known)
    by_name: dict[str, list[str]] = {}
    for path in known:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    present: dict[str, None] = {}
    new: dict[str, None] = {}
    for word in [*_QUOTED_MENTION.findall(text), *_WORD.findall(_QUOTED_MENTION.sub(" ", text))]:
        said = str(word).removeprefix("@").removeprefix("./").rstrip(".!?")
        name = stands_for.get(said, said)
        found = [name] if name in known else by_name.get(name, [])
        if len(found) == 1:
            present[found[0]] = None
        elif not found and _looks_like_file(name):
            new[name] = None
    return list(present), list(new)


def _looks_like_file(name: str) -> bool:
    base = name.rpartition("/")[2]
    stem, dot, suffix = base.rpartition(".")
    return base in _BARE_NAMES or bool(dot and stem and _SUFFIX.fullmatch(suffix) and not name.startswith("//"))


def read_order(text: str, known: Sequence[str], changed: Sequence[str] = (), *, can_run: bool = True) -> Order:
    """What `text` asks for. `known`: the files there are; `changed`: those that earlier steps changed ("edit it")."""
    present, new = named_files(text, known)
    text, stands_for = one_word(text, known)
    is_look = _NO_CHANGE.search(text) is not None
    heads = [_IN.sub("", clause, 1) for clause in _clauses(_NO_CHANGE.sub("", text))]
    creates = [bool(new and _CREATE.match(head) and not _COMMAND.match(head)) for head in heads]
    words = {name: word for word, name in stands_for.items()}
    moves = _moves_a_file(heads, [words.get(path, path) for path in present])
    commands = [can_run and (moves or _COMMAND.match(head) is not None) for head in heads]
    receivers = [path for path in present if _receives(path, heads, words)]
    if any(creates) and not any(commands[: creates.index(True)]):
        return Order("create", (*receivers, *new), tuple(present))
    has_pasted = "\n" in text.strip()  # then the question is about that
    if any(commands) or (can_run and not has_pasted and _COMMAND_QUESTION.search(text)):
        return Order("command", (), tuple(present), wants_answer(text))
    tells = [head for head in heads if _is_told(head)]
    orders_change = any(_CHANGE.match(head) for head in heads if head not in tells) and not text.rstrip().endswith("?")
    is_about_last = _POINTS_BACK.search(text) or (orders_change and _PART.search(text))
    is_for_tests = len([head for head in heads if _CHANGE.match(head)]) == 1 and any(map(_ADD_TEST.match, heads))
    meant = [path for path in present if path in receivers or not (is_for_tests or is_test(path))]
    if receivers and any(map(_TELLS.match, heads)):
        meant = receivers  # a summary of one file goes to another
    targets = tuple(meant or present) or tuple(changed[-1:] if is_about_last else ())
    is_question = _ASK.match(text) is not None or text.rstrip().endswith("?") or bool(tells)
    if any(_RENAME.match(head) for head in (text, *heads)):
        return Order("rename", targets, tuple(present) or targets)
    if is_question and _is_polite_order(heads):
        orders_change = True
    names_code = bool(identifiers(text) or proper_names(text))
    says_something = len(text.split()) > len(present)  # more than names of files
    if (orders_change and (targets or names_code)) or (present and says_something and not (is_question or is_look)):
        return Order("change", targets, tuple(present) or targets)
    return Order("question", (), tuple(present))


def no_such_file(text: str, known: Sequence[str], order: Order) -> str:
    """The file that an order to change or to explain one names and that is not there; "" when it is about others."""
    present, new = named_files(text, known)
    if present or order.targets or order.kind in ("create", "command") or "\n" in text.strip():
        return ""
    is_change = order.kind != "question" or any(_CHANGE.match(_IN.sub("", clause, 1)) for clause in _clauses(text))
    is_meant = [is_change or re.search(_ABOUT_FILE.pattern + re.escape(name), text, re.IGNORECASE) for name in new]
    names = [name for name, meant in zip(new, is_meant, strict=True) if meant and not _MAYBE_CODE.fullmatch(name)]
    return names[0] if names else ""


def _is_told(head: str) -> bool:
    """Whether a clause wants something said: "give a table of its methods", "write a summary of app.py"."""
    found = _TELLS.match(head)
    into = _INTO.search(head, found.end()) if found else None
    is_source = (
        into is not None and into[0].lower().startswith("in ") and found is not None and found["verb"].lower() == "give"
    )
    return found is not None and (into is None or is_source)


def _moves_a_file(heads: Sequence[str], present: Sequence[str]) -> bool:
    """Whether a file gets another name: "rename logo.png to icon.png"."""
    bases = {path.rpartition("/")[2] for path in present}
    for found in filter(None, map(_RENAMED.match, heads)):
        base, suffix = found[1].rpartition("/")[2], found[1].rpartition(".")[2]
        if base in bases and found[2].rstrip(".!").endswith(f".{suffix}"):
            return True
    return False


def _clauses(text: str) -> list[str]:
    """The parts of an order; the commas of "f(a, b)" part nothing."""
    whole = _CALLED.sub(lambda call: call.group().replace(" ", "\0"), text)
    return [part.strip().replace("\0", " ") for part in _CLAUSE.split(whole) if part and part.strip()]


def wants_answer(text: str) -> bool:
    """Whether an order to run something asks for a sentence about what came of it."""
    return _WANTS_ANSWER.search(text) is not None


def _is_polite_order(heads: Sequence[str]) -> bool:
    return any(re.match(r"\W*(?:can|could|would|will) you\b", head, re.I) and _CHANGE.match(head) for head in heads)


def _receives(path: str, heads: Sequence[str], words: Mapping[str, str]) -> bool:
    """Whether something is to be added to this file: "add a function to a.py", "… with a test in test_a.py".
    `words`: what stands for some names."""
    names = "|".join(re.escape(words.get(name, name)) for name in (path, path.rpartition("/")[2]))
    name = rf"(?:the\s+)?(?:file\s+|module\s+)?[@`\"'(]*(?:\./)?(?:{names})(?!\w)"
    added = re.compile(rf"{_ADD}\b.*\b(?:to|into)\s+{name}", re.IGNORECASE | re.DOTALL)
    tested = re.compile(rf"(?:{_ADD}\s|.*\bwith\s)?{_TESTS}\s+(?:in|to|into)\s+{name}", re.IGNORECASE | re.DOTALL)
    return any(added.match(head) or (is_test(path) and tested.match(head)) for head in heads)


def is_test(path: str) -> bool:
    """Whether a file is one of tests, by its name or its folder."""
    return _TEST_FILE.search(path) is not None


def identifiers(text: str) -> list[str]:
    """Words of a prompt that look like names in code: quoted, with an underscore or inner capitals, or all capitals."""
    quoted = re.findall(r"[`\"']([A-Za-z_][\w.]*)[`\"']", text)
    words = re.findall(r"\b[A-Za-z_]\w{2,}\b", text)
    coded = [w for w in words if "_" in w or re.search(r"[a-z][A-Z]", w) or (w.isupper() and len(w) > 2)]
    return list(dict.fromkeys([*quoted, *coded]))


def proper_names(text: str) -> list[str]:
    """Words with a capital within a sentence, which may be classes, and names that are written as calls."""
    called = re.findall(r"\b([A-Za-z_]\w*)\(", text)
    called += [name for name in _NAMED_CODE.findall(text) if not NO_NAME.fullmatch(name)]
    return list(dict.fromkeys([*called, *re.findall(r"(?<=[a-z,] )([A-Z][a-z]\w+)\b", text)]))


def rename_words(text: str, *bodies: str) -> tuple[str, str]:
    """The old and the new name of an order to rename: the first word of it that the files hold, and the one after
    "to"; "" for what is not clear."""
    candidates, new = rename_candidates(text)
    old = next((word for word in candidates if any(whole_word(word).search(body) for body in bodies)), "")
    return (old, new) if new else ("", "")


def rename_candidates(text: str) -> tuple[list[str], str]:
    """The words of an order to rename that may be the old name, and the new name ("" where there is none)."""
    asked = re.search(r"\brename\b(.*)", text, re.IGNORECASE | re.DOTALL)
    to = re.search(r"\b(?:to|into|as)\s+(?:the\s+name\s+)?[`\"'.#]?([A-Za-z_$][\w$-]*)", text, re.IGNORECASE)
    if asked is None or to is None:
        return [], ""
    words = re.findall(r"(?<![\w./-])\.?([A-Za-z_$][\w$-]*)(?![\w/]|\.\w)", asked.group(1))
    return [word for word in words if word != to.group(1) and not _FUNCTION_WORD.fullmatch(word)], to.group(1)


def whole_word(word: str) -> re.Pattern[str]:
    """Finds a name where it stands alone."""
    return re.compile(rf"(?<![\w$]){re.escape(word)}(?![\w$])")
