"""The models that pointcode knows by name, where they lie on disk, and what `pointcode model …` shows of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .errors import DownloadError, ModelError, UnknownModel
from .registry_data import MODELS, RegisteredModel

MODEL_ENDINGS = (".gguf", ".safetensors")
DEFAULT_MODEL = "qwen2.5-coder-0.5b"

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while a model is fetched."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `pointcode model list` and `info` show; `path` is None for a model that is not on disk."""

    name: str
    title: str
    licence: str
    size_bytes: int
    path: Path | None
    is_default: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a model's bytes on disk are the published ones."""

    path: Path
    expected_sha256: str
    actual_sha256: str

    @property
    def ok(self) -> bool:
        """Equal hashes."""
        return self.expected_sha256 == self.actual_sha256


def find_model(name: str) -> RegisteredModel:
    """The registered model of that name; raises UnknownModel with the known names."""
    for model in MODELS:
        if model.name == name:
            return model
    names = [model.name for model in MODELS]
    if "/" in name or name.endswith(MODEL_ENDINGS):
        raise UnknownModel(f"there is no file or folder {name} (models known by name: {', '.join(names)})")
    meant = [known for known in names if name and known.startswith(name.lower())] or get_close_matches(name, names, 1)
    hint = f"did you mean {' or '.join(meant)}?" if meant else f"known: {', '.join(names)}"
    raise UnknownModel(f"no model is called {name!r}, nor is it a path; {hint}")


def models_dir() -> Path:
    """Where fetched models lie: $POINTCODE_HOME/models, or the user's cache folder."""
    home = os.environ.get("POINTCODE_HOME")
    if home:
        return Path(home) / "models"
    import platformdirs

    return Path(platformdirs.user_cache_dir("pointcode")) / "models"


def model_path(model: RegisteredModel) -> Path:
    """Where a registered model lies once it is fetched (a file or a folder)."""
    return models_dir() / (f"{model.name}.gguf" if model.hub_file else model.name)


def resolve(name_or_path: str) -> Path:
    """The path of a model given by path, by registered name, or by hub id, if it is on disk.

    Raises DownloadError (fetch it with `pull`) for a known model that is not there, UnknownModel for anything else.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path.resolve()
    hub = hub_snapshot(name_or_path)
    if hub is not None:
        return hub
    model = find_model(name_or_path)
    found = _on_disk(model)
    if found is None:
        raise DownloadError(f"{model.name} is not on disk; fetch it with: pointcode model pull {model.name}")
    return found


def list_models() -> list[ModelInfo]:
    """Every registered model, and where it is."""
    return [info(model.name) for model in MODELS]


def info(name: str) -> ModelInfo:
    """One registered model."""
    model = find_model(name)
    return ModelInfo(
        model.name, model.title, model.licence, model.size_bytes, _on_disk(model), model.name == DEFAULT_MODEL
    )


def verify(name: str, progress: Progress | None = None) -> Verification:
    """Hash a fetched model. Raises DownloadError when it is not on disk, ModelError when no hash is pinned for it."""
    model = find_model(name)
    path = resolve(name)
    if not model.sha256:
        raise ModelError(f"no hash is pinned for {name}: it comes from the hub as it is")
    return Verification(path, model.sha256, sha256_of(path, progress))


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The file's SHA-256 in hex."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()


def hub_snapshot(repo: str) -> Path | None:
    """The newest complete snapshot of a hub repository in the hub's own cache on this machine."""
    if repo.count("/") != 1:
        return None
    root = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    folder = Path(root).expanduser() / ("models--" + repo.replace("/", "--")) / "snapshots"
    snapshots = [s for s in folder.glob("*") if (s / "config.json").exists() and any(s.glob("*.safetensors"))]
    return max(snapshots, key=lambda s: s.stat().st_mtime, default=None)


def _on_disk(model: RegisteredModel) -> Path | None:
    path = model_path(model)
    if path.exists():
        return path
    return None if model.hub_file else hub_snapshot(model.hub_repo)
