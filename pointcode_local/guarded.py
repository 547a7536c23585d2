"""Files as permissions look at them: every name they go by, and those whose change can run something later."""

from __future__ import annotations

from .tools.workspace import Place, Workspace

PROTECTED = frozenset({".git", ".pointcode"})  # in any letter case: some systems do not tell them apart


def is_protected(workspace: Workspace, place: Place) -> bool:
    """Does a path lead into such a folder, or to a file `.git`, which says where git's settings are?"""
    if not place.inside:
        return False
    parts = [part.casefold() for part in place.path.relative_to(workspace.root).parts]
    return bool(PROTECTED & set(parts[:-1])) or parts[-1:] == [".git"]


def names_of(place: Place, workspace: Workspace) -> tuple[str, ...]:
    """Every name under which a rule may know a file: as written, lexical and resolved, relative and absolute."""
    return tuple(
        dict.fromkeys(
            (
                place.text.removeprefix("./"),
                workspace.display(place.lexical),
                str(place.lexical),
                place.name,
                str(place.path),
            )
        )
    )
