"""Changes to the person's settings file; its comments and its order stay."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

from pointcode_local.config import ConfigError, Places, check_value, key_named, read_bytes
from pointcode_local.own_files import one_at_a_time, replace_file


def remove_value(places: Places, name: str) -> bool:
    """Take a key out of the person's file; False when it was not set there. Raises ConfigError."""
    key_named(name)
    with one_at_a_time(places.user_file):
        document = _document(places)
        section, _, last = name.rpartition(".")
        table: Any = document.get(section, {}) if section else document
        if not isinstance(table, dict) or last not in table:
            return False
        del table[last]
        _replace(places, document, is_secret=False)
    return True


def _document(places: Places) -> Any:
    """The person's file with its comments."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse((read_bytes(places.user_file) or b"").decode("utf-8-sig"))
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{places.user_file}: {error}") from error


def _replace(places: Places, document: Any, *, is_secret: bool) -> None:
    import tomlkit

    path = places.user_file
    mode = path.stat().st_mode & (0o700 if is_secret else 0o777) if path.exists() else 0o600
    replace_file(path, tomlkit.dumps(document).encode(), mode)


def write_value(places: Places, name: str, text: str, check_rule: Callable[[str], str] = lambda rule: "") -> None:
    """Set a key in the person's file, keeping its comments. `text` is TOML, or a plain string. Raises ConfigError."""
    import tomlkit

    key = key_named(name)
    try:
        value: Any = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    if key.kind is str and not isinstance(value, str):
        value = text
    try:
        check_value(name, value, check_rule)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with one_at_a_time(places.user_file):
        document = _document(places)
        table = document
        if "." in name:
            section, name = name.split(".", 1)
            table = document.setdefault(section, tomlkit.table())
            if not isinstance(table, dict):
                raise ConfigError(f"{places.user_file}: {section} must be a table, got {table!r}")
        table[name] = value
        _replace(places, document, is_secret=name == "api_key")
