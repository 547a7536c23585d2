"""/health and /metrics, and what the server does with errors that are not the client's."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.engine import EngineStats
from pointcode_local.engine.errors import BackendError, CapacityError
from pointcode_local.engine.http.errors import of_engine
from pointcode_local.engine.http.health import HealthWatch
from pointcode_local.engine.http.metrics import REASONS

from .kit import HELLO, Asked, tiny_chat_model

IDLE = EngineStats(10, 1.0, 0, 0, 3, 0, 0, 50, 0.5, (), None)


class Clock:
    """A clock that the test moves, and counters that it sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stats = IDLE
        self.watch = HealthWatch(lambda: self.stats, lambda: self.now_s, stall_s=30)


def test_health_fails_when_work_is_pending_and_no_counter_moves() -> None:
    clock = Clock()
    assert clock.watch.problem() is None
    clock.stats = replace(IDLE, n_rows=2)
    clock.now_s += 29
    assert clock.watch.problem() is None
    clock.now_s += 2
    assert "no step for 31 s with 2 sequences" in (clock.watch.problem() or "")
    clock.stats = replace(clock.stats, steps=11)
    assert clock.watch.problem() is None
    clock.now_s += 31
    assert clock.watch.problem() is not None
    clock.stats = replace(clock.stats, n_rows=0, n_waiting=1, prefill_layers=99)
    assert clock.watch.problem() is None


def test_an_idle_engine_stays_healthy() -> None:
    clock = Clock()
    for _ in range(5):
        clock.now_s += 1000
        assert clock.watch.problem() is None


def test_a_dead_engine_is_told_by_health_and_refuses_requests(tmp_path: Path) -> None:
    model = tiny_chat_model(tmp_path)
    asked = Asked(model)
    assert asked.request("GET", "/health").json() == {"status": "ok"}
    model.engine.close()
    answer = asked.request("GET", "/health")
    assert answer.status_code == 503
    assert "closed" in answer.json()["problem"]
    status, body = asked.post("/v1/chat/completions", messages=HELLO)
    assert status == 503
    assert "closed" in body["error"]["message"]


def test_a_busy_engine_is_worth_asking_again() -> None:
    busy = of_engine(CapacityError("64 requests are waiting already"))
    assert (busy.status, busy.headers) == (429, {"Retry-After": "1"})
    assert of_engine(BackendError("x")).status == 503


def test_metrics_count_requests_tokens_and_pages(asked: Asked, model: LocalChatModel) -> None:
    begun_s = time.perf_counter()
    asked.post("/v1/chat/completions", messages=HELLO, max_tokens=4)
    asked.post("/v1/chat/completions", messages=HELLO, max_tokens=0)
    asked.post("/v1/messages", messages=HELLO, max_tokens=0)
    asked.post("/v1/responses", input="", max_output_tokens=0)
    asked.post("/v1/chat/completions", messages=HELLO, n=2, max_tokens=3)
    asked.post("/v1/chat/completions", messages=HELLO, max_tokens=3, stop="x" * 2000)
    asked.post("/v1/chat/completions", messages=[{"role": "user", "content": "long " * 9000}])
    asked.post("/nowhere")
    asked.request("GET", "/v1/models", headers={"Host": "evil.example"})
    text = asked.request("GET", "/metrics").text
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert values['pointcode_requests_total{route="chat_completions",status="200"}'] == 2
    assert values['pointcode_requests_total{route="chat_completions",status="400"}'] == 3
    assert values['pointcode_requests_total{route="unknown",status="404"}'] == 1
    assert values['pointcode_requests_total{route="gate",status="403"}'] == 1
    replies = {reason: values[f'pointcode_replies_total{{reason="{reason}"}}'] for reason in REASONS}
    assert replies == {**dict.fromkeys(REASONS, 0), "length": 3, "refused": 1}
    assert values['pointcode_requests_total{route="messages",status="400"}'] == 1
    assert values['pointcode_requests_total{route="responses",status="400"}'] == 1
    assert values['pointcode_tokens_total{kind="generated"}'] == 10
    assert values["pointcode_live_requests"] == 0
    assert values["pointcode_time_to_first_token_seconds_count"] == 3
    assert values['pointcode_time_to_first_token_seconds_bucket{le="+Inf"}'] == 3
    longest_s = 3 * (time.perf_counter() - begun_s)  # three replies, and none took longer than all
    assert 0 < values["pointcode_time_to_first_token_seconds_sum"] <= longest_s
    assert 0 <= values["pointcode_between_tokens_seconds_sum"] <= longest_s
    pages = [values[f'pointcode_kv_pages{{group="0",state="{state}"}}'] for state in ("free", "cached", "used")]
    assert sum(pages) == model.engine.stats().pages[0].total
    named = tuple(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    assert all(name.startswith(named) for name in values)


@pytest.mark.parametrize(
    "notes", [{"a": "x" * 513}, {"a" * 65: "x"}, {f"n{i}": "x" for i in range(17)}, {"a": 1}, {"a": {"b": "c"}}, ["a"]]
)
def test_notes_that_are_kept_with_a_response_are_few_and_short(asked: Asked, notes: object) -> None:
    """256 responses are kept: what a client may add to each must not fill the memory."""
    status, body = asked.post("/v1/responses", input="hello", max_output_tokens=1, metadata=notes)
    assert (status, body["error"]["param"]) == (400, "metadata")


def test_notes_are_repeated_in_the_response(asked: Asked) -> None:
    notes = {f"n{i}": "x" * 512 for i in range(16)}
    _, body = asked.post("/v1/responses", input="hello", max_output_tokens=1, metadata=notes)
    assert body["metadata"] == notes
    assert asked.request("GET", f"/v1/responses/{body['id']}").json()["metadata"] == notes
