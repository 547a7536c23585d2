"""What the first start tells the person: the machine, the model, the sandbox, and what would be fetched."""

from __future__ import annotations

from pathlib import Path

from pointcode_local.config import Places, Settings
from pointcode_local.engine import registry
from pointcode_local.engine.doctor import Fact, cpu_fact, gpu_facts, memory_fact
from pointcode_local.engine.errors import DownloadError, EngineError
from pointcode_local.frontend import Finding, FirstLook
from pointcode_local.local_models import default_model
from pointcode_local.render import short_bytes
from pointcode_local.tools.sandbox import sandbox_status

_NAMES = {"gpu": "GPU", "cpu": "processor"}


def first_look(settings: Settings, places: Places) -> FirstLook | None:
    """What was found; None when the person has seen it before and no model has to be fetched. Takes up to a second."""
    if settings.endpoint:
        return None
    name = settings.model or default_model()
    download = _download(name)
    if not download and _marker(places).exists():
        return None
    facts = [*gpu_facts(), cpu_fact(), memory_fact()]
    return FirstLook((*map(_finding, facts), _model(name, download), _sandbox()), download)


def note_seen(places: Places) -> None:
    """The person has seen it; a read-only home folder means that it is shown again."""
    try:
        places.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        _marker(places).touch()
    except OSError:
        return


def _marker(places: Places) -> Path:
    return places.state / "welcomed"


def _finding(fact: Fact) -> Finding:
    text = "none that can be used; the model runs on the processor" if fact.topic == "gpu" and not _is_gpu(fact) else ""
    return Finding(_NAMES.get(fact.topic, fact.topic), text or fact.text, fact.verdict == "good" or bool(text))


def _is_gpu(fact: Fact) -> bool:
    return fact.verdict != "missing"


def _download(name: str) -> str:
    """What would be fetched for this model; "" when it is on disk, or when nobody knows it (opening says so)."""
    try:
        registry.resolve(name)
    except DownloadError:
        model = registry.info(name)
        return f"{model.name}, {short_bytes(model.size_bytes)}, licence {model.licence}"
    except EngineError:
        return ""
    return ""


def _model(name: str, download: str) -> Finding:
    try:
        title = registry.info(name).title
    except EngineError:
        return Finding("model", name)
    return Finding("model", f"{title}, {'not on this machine yet' if download else 'on this machine'}", not download)


def _sandbox() -> Finding:
    status = sandbox_status()
    text = status.text.removeprefix("sandbox: ")
    return Finding("sandbox", text[:1].upper() + text[1:] if status.kind == "none" else text, status.kind != "none")
