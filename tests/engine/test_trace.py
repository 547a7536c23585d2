"""Traces of decode steps: what the CPU backend stamps, and how stamps become a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pointcode_local.engine.bench.decode import measure_decode
from pointcode_local.engine.bench.trace import GPU_EVENTS, GPU_LAYERS, cpu_slices, gpu_slices, summary, write_trace
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.plans import model_plan
from pointcode_local.engine.scheduler import build
from pointcode_local.engine.weights import open_weights
from tests.native.test_cpu_backend import make_backend, teacher_forced

from .tiny_models import make_tiny


def test_every_task_of_the_recorded_steps_is_stamped_once_in_list_order(tmp_path: Path) -> None:
    weights = open_weights(make_tiny("cohere2_moe", tmp_path))
    schedule = build(model_plan(weights.config), n_rows=2, n_processors=2)
    backend = make_backend(weights, schedules=[schedule])
    teacher_forced(backend, ((1, 2, 3), (4, 5, 6)))
    assert all(len(stamps) == 0 for stamps in backend.stamps())
    backend.record_steps(2)
    teacher_forced(backend, ((1, 2, 3), (4, 5, 6)))
    for processor, stamps in enumerate(backend.stamps()):
        mine = schedule.tasks[schedule.offsets[processor] : schedule.offsets[processor + 1]]
        assert stamps["ordinal"].tolist() == mine["ordinal"].tolist() * 2
        assert stamps["opcode"].tolist() == mine["opcode"].tolist() * 2
        assert (stamps["taken"] <= stamps["begun"]).all() and (stamps["begun"] <= stamps["ended"]).all()
        assert (stamps["ended"][:-1] <= stamps["taken"][1:]).all()
    assert len(summary(cpu_slices(backend.stamps())).splitlines()) > 10


def test_the_decode_benchmark_writes_a_trace_with_a_row_per_worker(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "model")
    path = tmp_path / "trace.json"
    options = EngineOptions(backend="cpu", n_threads=2, kv_bytes=8 << 20, context_tokens=256)
    measure_decode(str(folder), options, batch=1, context_tokens=20, n_tokens=4, repeats=1, peer=False, trace=path)
    events = json.loads(path.read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["worker 0", "worker 1"]
    tasks = [e for e in events if e.get("cat") == "task"]
    assert len({e["args"]["step"] for e in tasks}) == 4 and all(e["dur"] >= 0 and e["ts"] >= 0 for e in tasks)
    assert {"L0 QKV_PROJ", "L2 FFN_DOWN", "L3 LM_HEAD"} <= {e["name"] for e in tasks}


def test_gpu_stamps_become_phases_and_marks(tmp_path: Path) -> None:
    stamps = np.zeros((2, GPU_LAYERS, GPU_EVENTS), np.int64)
    stamps[1, 3, [0, 1, 2, 3, 4, 6, 7, 15]] = [1000, 1200, 1500, 1900, 2500, 2600, 3000, 1700]
    slices = gpu_slices(stamps)
    assert [(s.processor, s.name, s.end_ns - s.begin_ns) for s in slices] == [
        (1, "L3 norm", 200), (1, "L3 qkv", 300), (1, "L3 attention", 400), (1, "L3 gate/up", 600), (1, "L3 o", 100),
        (1, "L3 down", 400), (1, "L3 route made", 0),
    ]  # fmt: skip
    write_trace(tmp_path / "t.json", slices, "SM")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert events[0]["args"]["name"] == "SM 1"
    assert [e["ph"] for e in events[1:]].count("i") == 1 and events[1]["ts"] == 0.0
