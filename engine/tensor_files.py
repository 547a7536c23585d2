"""Tensors in files, memory-mapped: the common record, and the safetensors reader."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .models.config import WeightFormat

Bytes = NDArray[np.uint8]

# (values in a block, bytes of a block)
BLOCK: Mapping[WeightFormat, tuple[int, int]] = {
    WeightFormat.F32: (1, 4),
    WeightFormat.F16: (1, 2),
    WeightFormat.BF16: (1, 2),
    WeightFormat.Q8_0: (32, 34),
    WeightFormat.Q4_0: (32, 18),
    WeightFormat.Q4_1: (32, 20),
    WeightFormat.Q5_0: (32, 22),
    WeightFormat.Q5_1: (32, 24),
    WeightFormat.Q4_K: (256, 144),
    WeightFormat.Q5_K: (256, 176),
    WeightFormat.Q6_K: (256, 210),
}


def _f32(data: Bytes) -> NDArray[np.float32]:
    return data.view(np.float32).copy()


def _f16(data: Bytes) -> NDArray[np.float32]:
    return data.view(np.float16).astype(np.float32)


def _bf16(data: Bytes) -> NDArray[np.float32]:
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# The formats without blocks, as fp32 in memory of their own.
PLAIN: Mapping[WeightFormat, Callable[[Bytes], NDArray[np.float32]]] = {
    WeightFormat.F32: _f32,
    WeightFormat.F16: _f16,
    WeightFormat.BF16: _bf16,
}
_SAFETENSORS_FORMATS = {"F32": WeightFormat.F32, "F16": WeightFormat.F16, "BF16": WeightFormat.BF16}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """A tensor as it lies in its file: `shape` row-major, `data` all its bytes (a read-only map of the file)."""

    format: WeightFormat
    shape: tuple[int, ...]
    data: Bytes
    path: Path
    begin: int  # where `data` begins in the file


@dataclass(frozen=True, slots=True)
class Extent:
    """`n_bytes` of a file from byte `begin` on."""

    path: Path
    begin: int
    n_bytes: int


def row_bytes_of(format: WeightFormat, cols: int) -> int:
    """Bytes of one row of `cols` values; raises ModelError when a row does not end with a block."""
    values, size = BLOCK[format]
    if cols % values:
        raise ModelError(f"a row of {cols} values is not a whole number of {format.name} blocks of {values}")
    return cols // values * size


def tensor_bytes(format: WeightFormat, shape: tuple[int, ...]) -> int:
    """Bytes of a whole tensor."""
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows * row_bytes_of(format, shape[-1] if shape else 1)


def map_file(path: Path) -> Bytes:
    """The file's bytes, mapped read-only."""
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def read_safetensors_folder(folder: Path) -> dict[str, RawTensor]:
    """All tensors of a folder: model.safetensors.index.json with its shards, or the folder's only safetensors file.

    Only the files that the index names are opened. Raises ModelError for a missing shard, or a tensor that the index
    promises and the shard lacks.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(_only_file(folder))
    weight_map = _weight_map(index)
    tensors: dict[str, RawTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise ModelError(f"{index}: the shard name {shard!r} points out of the folder")
        tensors |= read_safetensors(folder / shard)
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise ModelError(f"{index} names tensors that its files lack: {', '.join(missing[:20])}")
    return tensors


def read_safetensors(path: Path) -> dict[str, RawTensor]:
    """All tensors of one safetensors file. Offsets are checked against the file's length."""
    data = map_file(path)
    if data.size < 8:
        raise ModelError(f"{path} is too short to be a safetensors file ({data.size} bytes)")
    (header_bytes,) = struct.unpack("<Q", data[:8].tobytes())
    if header_bytes > min(_MAX_HEADER_BYTES, data.size - 8):
        raise ModelError(f"{path}: its header claims {header_bytes} bytes, the file has {data.size}")
    header = _parse_object(data[8 : 8 + header_bytes].tobytes(), path)
    first = 8 + int(header_bytes)
    return {
        name: _raw_tensor(name, entry, data, first, path) for name, entry in header.items() if name != "__metadata__"
    }


def _raw_tensor(name: str, entry: object, data: Bytes, first: int, path: Path) -> RawTensor:
    """The tensor that an entry of the header describes; offsets count from byte `first` of the file."""
    fields = cast("Mapping[str, object]", entry) if isinstance(entry, Mapping) else {}
    format = _SAFETENSORS_FORMATS.get(str(fields.get("dtype")))
    if format is None:
        known = ", ".join(_SAFETENSORS_FORMATS)
        raise ModelError(f"{path}: {name} has dtype {fields.get('dtype')!r}, which is not implemented (known: {known})")
    try:
        shape = tuple(int(n) for n in cast("list[int]", fields["shape"]))
        begin, end = (int(n) for n in cast("list[int]", fields["data_offsets"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{path}: the header's entry of {name} is damaged: {entry!r}") from error
    size = data.size - first
    if not 0 <= begin <= end <= size or end - begin != tensor_bytes(format, shape):
        raise ModelError(f"{path}: {name} {shape} lies at [{begin}, {end}) of {size} bytes: the file is damaged")
    return RawTensor(format, shape, data[first + begin : first + end], path, first + begin)


def _only_file(folder: Path) -> Path:
    single = folder / "model.safetensors"
    if single.exists():
        return single
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise ModelError(f"{folder}: expected model.safetensors or an index, found {names}")
    return found[0]


def _weight_map(index: Path) -> dict[str, str]:
    found = _parse_object(index.read_bytes(), index).get("weight_map")
    if not isinstance(found, dict):
        raise ModelError(f"{index}: weight_map is missing")
    return {str(k): str(v) for k, v in cast("dict[object, object]", found).items()}


def _parse_object(text: bytes, path: Path) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return cast("dict[str, object]", parsed)
