"""What an order names that must stand in the file afterwards: a small model often forgets one of two things."""

from __future__ import annotations

import re

from pointcode_local.orders import NO_NAME

_NAME = r"(?:called\s+|named\s+)?(?P<quote>[`\"']?)(?P<name>[A-Za-z_]\w*)(?P=quote)"
_ADD = r"\b(?:add|create|implement|insert|write|with)\s+(?:an?\s+|the\s+)?"
_PARAMETER = re.compile(rf"\b(?:add|give|gets?|takes?|accepts?|new)\b[^.;\n]*?\bparameter\s+{_NAME}", re.IGNORECASE)
_DEFINED = re.compile(rf"{_ADD}(?P<kind>function|method|class)\s+{_NAME}(?P<call>\()?", re.IGNORECASE)
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|-?\d[\d.]*|True|False|None"
_DEFAULT = re.compile(rf"\bdefault(?:\s+value)?(?:\s+(?:is|of|to))?\s+({_VALUE})(?!\w)")
_HEADER = re.compile(
    r"\b(?:header|columns)\s+(?:row\s+|line\s+)?(?:is\s+|of\s+|are\s+)?[`\"']?(\w+(?:\s?,\s?\w+)+)", re.IGNORECASE
)
_TITLE = re.compile(r"\b(?:title|heading|headline)\s+(?:is\s+|of\s+)?([`\"'])([^`\"'\n]{1,80})\1", re.IGNORECASE)


def unmet(order: str, name: str, text: str) -> str:
    """A sentence on the first thing that the order names for the file `name` and that its text lacks; "" for none.

    Only what must stand there letter by letter is looked for: a name that is added, a header, a quoted title.
    """
    low = text.lower()
    for found in _PARAMETER.finditer(order):
        if not NO_NAME.fullmatch(found["name"]) and found["name"].lower() not in low:
            return f"{name} has no parameter {found['name']}"
    for found in _DEFINED.finditer(order):
        wanted, kind = found["name"], found["kind"].lower()
        is_name = found["quote"] or found["call"] or "_" in wanted or (kind == "class" and wanted[0].isupper())
        if is_name and wanted.lower() not in low:
            return f"{name} has no {kind} {wanted}"
    for found in _HEADER.finditer(order):
        if _bare(found[1]) not in _bare(low):
            return f"the header {found[1]} is missing in {name}"
    for found in _TITLE.finditer(order):
        if found[2].lower() not in low:
            return f'the title "{found[2]}" is missing in {name}'
    return ""


def first_line(order: str, name: str) -> str:
    """The line that a new table must begin with, as far as the order spells it out; "" for none."""
    found = _HEADER.search(order) if name.lower().endswith(".csv") else None
    return re.sub(r"\s", "", found[1]) + "\n" if found else ""


def new_parameter(order: str) -> tuple[str, str]:
    """The name of the parameter that is to be added, and its default as code ("" where the order gives none)."""
    found = _PARAMETER.search(order)
    if found is None or NO_NAME.fullmatch(found["name"]):
        return "", ""
    default = _DEFAULT.search(order, found.end())
    return found["name"], default[1] if default else ""


def _bare(text: str) -> str:
    return re.sub(r"[\s\"'`]", "", text.lower())
