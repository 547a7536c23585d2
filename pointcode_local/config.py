"""Settings: defaults < the person's file < the project's file < environment < flags, each value with its origin.

The project's file comes with the repository, so it cannot widen rights: its `ask` and `deny` rules always count; what
could do harm (allow rules, mode, endpoint, model, hooks, MCP servers) counts only after the person has trusted exactly
these bytes (`pointcode config trust`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, cast

from pointcode_local.events import MODES
from pointcode_local.extensions import Hook, McpServer, parse_hooks, parse_servers, scripts_of
from pointcode_local.own_files import one_at_a_time, replace_file
from pointcode_local.tools.regular import read_regular

MAX_BYTES = 1 << 20  # of a settings file
MAX_SCRIPT_BYTES = 64 << 20
PROJECT_FILE = Path(".pointcode", "config.toml")
BACKENDS = ("auto", "megakernel", "cpu", "torch")
EDIT_MENUS = ("auto", "tools", "blocks")
DEFAULT = "default"  # the origin of what nobody set
THEMES = ("auto", "dark", "light", "dark-contrast", "light-contrast", "none")
KEYS = ("standard", "vi")


class ConfigError(Exception):
    """Settings that cannot be used; the text names file, line and cure."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. `origins` maps a key to where its value came from."""

    model: str = ""
    backend: str = "auto"
    endpoint: str = ""
    api_key: str = ""
    stall_timeout_s: float = 900.0  # of an endpoint that sends nothing of the reply; 0: none
    permission_mode: str = "ask"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_turns: int = 200
    temperature: float = -1.0  # below 0: the model's own
    theme: str = "auto"
    keys: str = "standard"  # of the message field
    bell: bool = True  # when a question or an answer comes while another window has the focus
    small_model: str = "auto"
    edit_menu: str = "auto"
    edit_menus: Mapping[str, str] = field(default_factory=dict[str, str])  # by model name
    repo_map_tokens: int = 1500  # 0: no map
    sandbox: str = "auto"  # auto: what nobody agreed to; always: every command; off
    sandbox_network: bool = False
    hooks: tuple[Hook, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()  # what an untrusted project's file asked for, in words

    def menu_of(self, *names: str) -> str:
        """The edit menu set for the model that goes by these names, or for all."""
        return next((self.edit_menus[name] for name in names if name in self.edit_menus), self.edit_menu)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the files: its name, field, type and values, and whether a project needs trust for it."""

    name: str
    field: str
    kind: type
    choices: tuple[str, ...] = ()
    needs_trust: bool = True


_KEYS = (
    Key("model", "model", str),
    Key("backend", "backend", str, BACKENDS, needs_trust=False),
    Key("endpoint", "endpoint", str),
    Key("api_key", "api_key", str),
    Key("stall_timeout_s", "stall_timeout_s", float, needs_trust=False),
    Key("permission_mode", "permission_mode", str, MODES),
    Key("max_turns", "max_turns", int, needs_trust=False),
    Key("temperature", "temperature", float, needs_trust=False),
    Key("theme", "theme", str, THEMES, needs_trust=False),
    Key("keys", "keys", str, KEYS, needs_trust=False),
    Key("bell", "bell", bool, needs_trust=False),
    Key("small_model", "small_model", str, ("auto", "yes", "no"), needs_trust=False),
    Key("edit_menu", "edit_menu", str, EDIT_MENUS, needs_trust=False),
    Key("edit_menus", "edit_menus", dict, needs_trust=False),
    Key("repo_map_tokens", "repo_map_tokens", int, needs_trust=False),
    Key("sandbox", "sandbox", str, ("auto", "always", "off")),
    Key("sandbox_network", "sandbox_network", bool),
    Key("permissions.allow", "allow", list),
    Key("permissions.ask", "ask", list, needs_trust=False),
    Key("permissions.deny", "deny", list, needs_trust=False),
    Key("hooks", "hooks", dict),
    Key("mcp_servers", "mcp_servers", dict),
)
_BY_NAME = {key.name: key for key in _KEYS}
_ENVIRONMENT = {"POINTCODE_MODEL": "model", "POINTCODE_ENDPOINT": "endpoint", "POINTCODE_API_KEY": "api_key"}
_LISTS = ("allow", "ask", "deny", "hooks", "mcp_servers")  # a later layer adds to them


@dataclass(frozen=True, slots=True)
class Places:
    """Where settings and state are kept."""

    config: Path  # folder of the person's config.toml
    state: Path  # sessions, checkpoints, trust
    cache: Path  # models

    @property
    def user_file(self) -> Path:
        """The person's settings."""
        return self.config / "config.toml"

    @property
    def trust_file(self) -> Path:
        """Which project files are trusted."""
        return self.state / "trusted.json"


def find_places(environment: Mapping[str, str]) -> Places:
    """POINTCODE_HOME holds everything when it is set; else the XDG folders (or the platform's own)."""
    home = environment.get("POINTCODE_HOME", "")
    if home:
        root = Path(home).expanduser()
        return Places(root, root, root / "cache")
    import platformdirs

    name = "pointcode"
    return Places(
        platformdirs.user_config_path(name), platformdirs.user_state_path(name), platformdirs.user_cache_path(name)
    )


def load_settings(
    places: Places,
    cwd: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    check_rule: Callable[[str], str] = lambda rule: "",
) -> Settings:
    """All layers put together. `flags` maps field names to values, None for those not given.

    `check_rule` says what is wrong with a permission rule, "" when nothing is. Raises ConfigError.
    """
    settings = _add_file(Settings(), places.user_file, "user file", check_rule, trusted=lambda _: True)
    project = find_project_file(cwd, places)
    if project is not None:
        trusted = partial(_is_known, project, places)
        settings = _add_file(settings, project, "project file", check_rule, trusted=trusted)
    for variable, name in _ENVIRONMENT.items():
        if environment.get(variable):
            settings = set_value(settings, name, environment[variable], variable)
    for name, value in flags.items():
        if value is not None:
            settings = set_value(settings, name, value, "flag")
    return settings


def find_project_file(cwd: Path, places: Places) -> Path | None:
    """The nearest `.pointcode/config.toml` from `cwd` up to the repository's root."""
    for folder in (cwd, *cwd.parents):
        path = folder / PROJECT_FILE
        if path.is_file() and path.resolve() != places.user_file.resolve():
            return path
        if (folder / ".git").exists():
            return None
    return None


def set_value(settings: Settings, name: str, value: Any, origin: str) -> Settings:
    """The settings with another value of the field `name`, which came from `origin`."""
    return replace(settings, **{name: value, "origins": {**settings.origins, name: origin}})


def _add_file(
    settings: Settings, path: Path, label: str, check_rule: Callable[[str], str], *, trusted: Callable[[bytes], bool]
) -> Settings:
    """Judges and parses the same bytes: the file may be another one a moment later."""
    data = read_bytes(path)
    if data is None:
        return settings
    text = data.decode("utf-8", "replace")
    for name, value in _flatten(_parse(path, data), path, text).items():
        key = _BY_NAME[name]
        checked = _checked(key, value, path, text, check_rule)
        if key.needs_trust and not trusted(data):
            note = f"{path}: {name} is ignored until you run `pointcode config trust` in this project"
            settings = replace(settings, ignored=(*settings.ignored, note))
            continue
        origin = f"{label} {path}:{_line_of(text, name)}"
        if key.field in _LISTS:
            checked = (*getattr(settings, key.field), *checked)
        settings = set_value(settings, key.field, checked, origin)
    return settings


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes | None:
    """A regular file; None when there is none. Raises ConfigError when it cannot be read."""
    try:
        return read_regular(path, max_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors put a mark first
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = found[1] if found else str(data.count(b"\n") + 1)
        raise ConfigError(f"{path}:{line}: {error}") from error


def _flatten(table: Mapping[str, Any], path: Path, text: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in table.items():
        if name == "permissions" and isinstance(value, dict):
            inner: dict[str, Any] = value
            out.update({f"permissions.{key}": item for key, item in inner.items()})
        else:
            out[name] = value
    for name in out:
        if name not in _BY_NAME:
            raise ConfigError(f"{path}:{_line_of(text, name)}: unknown key {name!r}{nearest_key(name)}")
    return out


def nearest_key(name: str) -> str:
    """`; did you mean …?` with the known key most like `name`, or all of them."""
    last = {key.rsplit(".", 1)[-1]: key for key in _BY_NAME}
    close = get_close_matches(name, _BY_NAME, 1) or [
        last[n] for n in get_close_matches(name.rsplit(".", 1)[-1], last, 1)
    ]
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(_BY_NAME)}"


def _line_of(text: str, name: str) -> int:
    last = re.escape(name.rsplit(".", 1)[-1])
    found = re.search(rf"^[ \t]*(\[+[ \t]*)?[\w.\"']*{last}\b", text, re.MULTILINE)
    return text[: found.start()].count("\n") + 1 if found else 1


def _checked(key: Key, value: Any, path: Path, text: str, check_rule: Callable[[str], str]) -> Any:
    """The value with its field's type; raises ConfigError."""
    try:
        return check_value(key.name, value, check_rule)
    except ValueError as error:
        raise ConfigError(f"{path}:{_line_of(text, key.name)}: {error}") from error


def check_value(name: str, value: Any, check_rule: Callable[[str], str] = lambda rule: "") -> Any:
    """The value of the key `name` with its field's type; raises ValueError saying what it must be."""
    key = _BY_NAME[name]
    if key.kind is list:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f'{name} must be a list of rules such as "shell(git status)"')
        rules: list[str] = value
        for rule in rules:
            if problem := check_rule(rule):
                raise ValueError(f"{name}: {problem}")
        return tuple(rules)
    if key.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, key.kind) or (key.kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} must be {_a(key.kind)}, got {value!r}")
    if name == "edit_menus":
        return _menus(cast(Mapping[str, Any], value))
    if key.choices and value not in key.choices:
        raise ValueError(f"{name} must be one of {', '.join(key.choices)}, got {value!r}")
    if name == "hooks":
        return parse_hooks(cast(Mapping[str, Any], value))
    if name == "mcp_servers":
        return parse_servers(cast(Mapping[str, Any], value))
    if name == "max_turns" and value < 1:
        raise ValueError(f"max_turns must be at least 1, got {value}")
    if name == "stall_timeout_s" and not 0 <= value < math.inf:
        raise ValueError(f"stall_timeout_s must be 0 (no limit) or more seconds, got {value}")
    if name == "repo_map_tokens" and value < 0:
        raise ValueError(f"repo_map_tokens must be 0 (no map) or more, got {value}")
    return value


def _menus(table: Mapping[str, Any]) -> Mapping[str, str]:
    if not all(menu in EDIT_MENUS for menu in table.values()):
        raise ValueError(f"edit_menus maps model names to one of {', '.join(EDIT_MENUS)}")
    return table


def _a(kind: type) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", dict: "a table", bool: "true or false"}
    return names.get(kind, kind.__name__)


# ----------------------------------------------------------------------------------------------- trust
def is_trusted(path: Path, places: Places) -> bool:
    """Whether the person has trusted exactly the present bytes of this file."""
    data = read_bytes(path)
    return data is not None and _is_known(path, places, data)


def _is_known(path: Path, places: Places, data: bytes) -> bool:
    return _trusted(places).get(str(path.resolve())) == _digest(path, data)


def _digest(path: Path, data: bytes) -> str:
    """Of the file's bytes, and of the project's own scripts that its commands name."""
    found = hashlib.sha256(data)
    for script in scripts_of(data, path.parent.parent):
        found.update(os.fsencode(script) + b"\0" + hashlib.sha256(read_bytes(script, MAX_SCRIPT_BYTES) or b"").digest())
    return found.hexdigest()


def trust(path: Path, places: Places) -> None:
    """Trust the present bytes of a project's file."""
    with one_at_a_time(places.trust_file):
        known = {**_trusted(places), str(path.resolve()): _digest(path, read_bytes(path) or b"")}
        replace_file(places.trust_file, json.dumps(known, indent=1).encode() + b"\n")


def _trusted(places: Places) -> dict[str, str]:
    try:
        known = json.loads(places.trust_file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}  # type: ignore[reportUnknownArgumentType]


# ----------------------------------------------------------------------------------------------- showing
def shown_values(settings: Settings) -> list[tuple[str, str, str]]:
    """(key, value as TOML, origin) of every key; the API key is masked."""
    names = {f.name for f in fields(settings)}
    out: list[tuple[str, str, str]] = []
    for key in _KEYS:
        assert key.field in names
        value = getattr(settings, key.field)
        text = '"***"' if key.name == "api_key" and value else json.dumps(value, ensure_ascii=False, default=_as_table)
        out.append((key.name, text, settings.origins.get(key.field, DEFAULT)))
    return out


def set_values(settings: Settings) -> list[tuple[str, str, str]]:
    """Those that somebody set, in whatever layer."""
    return [row for row in shown_values(settings) if row[2] != DEFAULT]


def _as_table(value: Any) -> Any:
    return {key: item for key, item in asdict(value).items() if item and key not in ("env", "headers")}


def key_named(name: str) -> Key:
    """The key of this name. Raises ConfigError."""
    if name not in _BY_NAME:
        raise ConfigError(f"unknown key {name!r}{nearest_key(name)}")
    return _BY_NAME[name]


def known_keys() -> tuple[str, ...]:
    """All keys of the files."""
    return tuple(_BY_NAME)
