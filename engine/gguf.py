"""Reader of GGUF files (versions 2 and 3, little-endian), memory-mapped.

Layout: magic, version, counts, key-value metadata, tensor infos, padding to `general.alignment`, tensor data. Strings
are a 64-bit length and UTF-8 bytes; a tensor's dimensions are stored fastest first (so they are reversed here).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .errors import ModelError
from .memo import file_key, forget_old, keep, recall
from .models.config import WeightFormat
from .tensor_files import Bytes, RawTensor, map_file, tensor_bytes

_TENSOR_FORMATS = {
    0: WeightFormat.F32, 1: WeightFormat.F16, 2: WeightFormat.Q4_0, 3: WeightFormat.Q4_1, 6: WeightFormat.Q5_0,
    7: WeightFormat.Q5_1, 8: WeightFormat.Q8_0, 12: WeightFormat.Q4_K, 13: WeightFormat.Q5_K, 14: WeightFormat.Q6_K,
    30: WeightFormat.BF16,
}  # fmt: skip
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 8  # of arrays of arrays
_KEPT_HEADERS = 4  # 5 MB each


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A GGUF file's metadata and tensors (maps of the file)."""

    metadata: Mapping[str, object]
    tensors: Mapping[str, RawTensor]


def read_gguf(path: Path, cache_dir: Path | None = None) -> GgufFile:
    """Open a GGUF file; raises ModelError when it is damaged or holds a tensor type that is not implemented.

    Its header holds hundreds of thousands of strings, which take 0.25 s; with a `cache_dir` they are kept there in a
    form that takes 0.05 s.
    """
    data = map_file(path)
    kept = cache_dir / f"gguf-{file_key(path, __file__)}" if cache_dir else None
    known = recall(kept) if kept else None
    if isinstance(known, tuple):
        metadata, entries, begin = cast("_Header", known)
    else:
        metadata, entries, begin = header = _read_header(data, path)
        if kept:
            keep(kept, header)
            forget_old(kept.parent, "gguf-", _KEPT_HEADERS)
    infos = (_TensorInfo(*entry) for entry in entries)
    return GgufFile(metadata, {info.name: _map_tensor(info, data, begin, path) for info in infos})


# Metadata, the fields of the tensors' infos, where the tensors' data begins.
_Header = tuple[dict[str, object], list[tuple[str, tuple[int, ...], int, int]], int]


def _read_header(data: Bytes, path: Path) -> _Header:
    cursor = _Cursor(data.data, path)
    if cursor.take(4) != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not implemented (known: 2, 3)")
    n_tensors, n_fields = cast("int", cursor.scalar("Q")), cast("int", cursor.scalar("Q"))
    metadata = {cursor.string(): cursor.value(cast("int", cursor.scalar("I"))) for _ in range(n_fields)}
    entries = [_tensor_entry(cursor) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path}: general.alignment is {alignment!r}: the file is damaged")
    return metadata, entries, -(-cursor.offset // alignment) * alignment


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class _Cursor:
    """Reads the header's fields in order."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data = data
        self._path = path
        self.offset = 0

    def take(self, n_bytes: int) -> bytes:
        begin, end = self.offset, self.offset + n_bytes
        if end > len(self._data):
            raise ModelError(f"{self._path}: the file ends at byte {len(self._data)}, inside its header")
        self.offset = end
        return bytes(self._data[begin:end])

    def scalar(self, code: str) -> int | float | bool:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(int.from_bytes(self.take(8), "little")).decode("utf-8", "replace")

    def value(self, type_id: int, depth: int = 0) -> object:
        if type_id in _SCALARS:
            return self.scalar(_SCALARS[type_id])
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY and depth < _MAX_DEPTH:
            return self._array(depth)
        what = "is nested too deep" if type_id == _ARRAY else "is unknown"
        raise ModelError(f"{self._path}: metadata type {type_id} {what}")

    def _array(self, depth: int) -> list[object]:
        item, length = cast("int", self.scalar("I")), cast("int", self.scalar("Q"))
        if item in _SCALARS:
            code = _SCALARS[item]
            return list(struct.unpack(f"<{length}{code}", self.take(length * struct.calcsize("<" + code))))
        if item == _STRING:
            return list(self._strings(length))
        return [self.value(item, depth + 1) for _ in range(length)]

    def _strings(self, n: int) -> Iterator[str]:
        """n strings. Written out, because vocabularies have hundreds of thousands."""
        data, offset, end = self._data, self.offset, len(self._data)
        for _ in range(n):
            length = int.from_bytes(data[offset : offset + 8], "little")
            begin = offset + 8
            offset = begin + length
            if offset > end:
                raise ModelError(f"{self._path}: the file ends at byte {end}, inside its header")
            yield str(data[begin:offset], "utf-8", "replace")
        self.offset = offset


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    n_dims = cast("int", cursor.scalar("I"))
    if n_dims > _MAX_DIMENSIONS:
        raise ModelError(f"the tensor {name} claims {n_dims} dimensions: the file is damaged")
    dims = [cast("int", cursor.scalar("Q")) for _ in range(n_dims)]
    return name, tuple(reversed(dims)), cast("int", cursor.scalar("I")), cast("int", cursor.scalar("Q"))


def _map_tensor(info: _TensorInfo, data: Bytes, begin: int, path: Path) -> RawTensor:
    format = _TENSOR_FORMATS.get(info.type_id)
    if format is None:
        known = ", ".join(f.name for f in _TENSOR_FORMATS.values())
        raise ModelError(f"{path}: {info.name} has tensor type {info.type_id}, not implemented (known: {known})")
    first = begin + info.offset
    end = first + tensor_bytes(format, info.shape)
    if end > data.size:
        raise ModelError(f"{path}: {info.name} ends at byte {end} of {data.size}: the file is cut short")
    return RawTensor(format, info.shape, data[first:end], path, first)
