"""Who may ask, and how much."""

from __future__ import annotations

import contextlib
import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.http.state import ServerLimits, ServerOptions

from .kit import HELLO, Asked, running

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"messages": HELLO, "max_tokens": 1})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "0.0.0.0:8000"])
def test_a_foreign_host_header_is_refused(asked: Asked, host: str) -> None:
    for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", CHAT)):
        answer = asked.request(method, path, headers={**JSON, "Host": host}, content=BODY)
        assert answer.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"])
def test_the_names_of_this_machine_are_accepted(asked: Asked, host: str) -> None:
    assert asked.request("GET", "/v1/models", headers={"Host": host}).status_code == 200


def test_the_key_is_asked_for_on_every_route_but_health(model: LocalChatModel) -> None:
    asked = Asked(model, ServerOptions(api_key="sekret"))
    routes = [("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT), ("GET", "/nowhere")]
    for method, path in routes:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sekret"}, {"x-api-key": "é"}):
            raw = {**JSON, **headers}
            answer = asked.request(method, path, headers={k: v.encode() for k, v in raw.items()}, content=BODY)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["code"] == "invalid_api_key"
    for headers in ({"Authorization": "Bearer sekret"}, {"x-api-key": "sekret"}):
        assert asked.request("POST", CHAT, headers={**JSON, **headers}, content=BODY).status_code == 200
    assert asked.request("GET", "/health").status_code == 200


@pytest.mark.parametrize("key", ["schlüssel-漢", "raw-\udcff", "!~ ,;"])
def test_a_key_is_compared_byte_by_byte(model: LocalChatModel, key: str) -> None:
    """Also one that is no ASCII, or was no text on the command line."""
    asked = Asked(model, ServerOptions(api_key=key))
    sent = key.encode("utf-8", "surrogateescape")
    for headers, status in (({"x-api-key": sent}, 200), ({"Authorization": b"Bearer " + sent}, 200), ({}, 401)):
        assert asked.request("GET", "/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_web_page_may_send_unasked_is_refused(asked: Asked, kind: str) -> None:
    answer = asked.request("POST", CHAT, headers={"Content-Type": kind, "Origin": "http://evil"}, content=BODY)
    assert answer.status_code == 415
    assert "access-control-allow-origin" not in answer.headers
    preflight = asked.request("OPTIONS", CHAT, headers={"Origin": "http://evil"})
    assert preflight.status_code == 405
    assert "access-control-allow-origin" not in preflight.headers


def test_a_body_that_is_too_large_is_refused_also_when_its_length_is_not_told(model: LocalChatModel) -> None:
    options = ServerOptions(limits=ServerLimits(body_bytes=1000))

    def pieces():
        for _ in range(100):
            yield b" " * 100

    with running(model, options) as server:
        answer = httpx.post(server.url + CHAT, content=b" " * 2000, headers=JSON)
        assert answer.status_code == 413
        answer = httpx.post(server.url + CHAT, content=pieces(), headers=JSON)
        assert answer.status_code == 413
        assert httpx.post(server.url + CHAT, content=BODY, headers=JSON).status_code == 200


def test_unknown_routes_and_methods_are_answered_in_json(asked: Asked) -> None:
    assert asked.request("GET", "/v2/nothing").json()["error"]["type"] == "not_found_error"
    for method, path, allowed in (("GET", CHAT, {"POST"}), ("POST", "/v1/models", {"GET", "HEAD"})):
        answer = asked.request(method, path, json={})
        assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, allowed)
        assert answer.json()["error"]["code"] == "unknown_url"
    assert asked.request("GET", "/v1/models/none").json()["error"]["code"] == "model_not_found"
    assert asked.request("GET", "/v1/models/tiny").json()["id"] == "tiny"
    assert asked.request("GET", "/v1/models/").json() == asked.request("GET", "/v1/models").json()


def test_every_alias_is_served_and_listed(model: LocalChatModel) -> None:
    asked = Asked(model, ServerOptions(aliases=("gpt-4o", "org/name")))
    for name in ("tiny", "default", "gpt-4o", "org/name", ""):
        status, body = asked.post(CHAT, messages=HELLO, max_tokens=1, model=name)
        assert (status, body["model"]) == (200, "tiny")
    listed = asked.request("GET", "/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["tiny", "gpt-4o", "org/name", "default"]
    assert asked.request("GET", "/v1/models/org/name").json()["root"] == "tiny"


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WHOLE = b'{"prompt": "x", "max_tokens": 1}'


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("rest", [b"", b"Content-Length: 100\r\n\r\n{"])
def test_a_request_that_never_becomes_whole_is_not_waited_for(
    model: LocalChatModel, rest: bytes, is_first: bool
) -> None:
    """Neither its head nor its body, on a fresh connection or after an answer."""
    options = ServerOptions(limits=ServerLimits(receive_timeout_s=0.3))
    with running(model, options) as server, socket.create_connection(address_of(server.url), timeout=60) as client:
        if not is_first:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(HEAD + rest)
        told = b""
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(65536):
                told += data
        assert (b"408" in told) == (rest != b"")
        assert httpx.get(server.url + "/health").status_code == 200


def test_connections_beyond_the_limit_are_turned_away_and_room_comes_back(model: LocalChatModel) -> None:
    options = ServerOptions(limits=ServerLimits(n_connections=3))
    with running(model, options) as server:
        held = [socket.create_connection(address_of(server.url), timeout=60) for _ in range(3)]
        for client in held:  # each is known to the server
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        with socket.create_connection(address_of(server.url), timeout=60) as late:
            told = late.recv(65536)
            assert told.startswith(b"HTTP/1.1 503") and b"Retry-After" in told
            assert late.recv(65536) == b""
        for client in held:
            client.close()
        while httpx.get(server.url + "/health").status_code != 200:
            pass


def address_of(url: str) -> tuple[str, int]:
    found = urlsplit(url)
    return found.hostname or "", found.port or 0
