"""Weights from files to a device: whatever the layout of the files and the size of the blocks, and what goes wrong."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pointcode_local.engine.cuda import file_reads
from pointcode_local.engine.cuda.device_weights import DeviceModel, Scratch
from pointcode_local.engine.cuda.file_reads import OpenFiles
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.staging import Piece, StagingTimes, staged
from pointcode_local.engine.errors import ModelError
from pointcode_local.engine.models.config import WeightKind
from pointcode_local.engine.tensor_files import Extent
from pointcode_local.engine.weights import ModelWeights, open_weights

from .tiny_models import make_tiny

CPU = torch.device("cpu")
BLOCKS = (4 << 10, 40 << 10, 64 << 20)  # runs of rows; a few matrices; everything at once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("cohere2_moe", tmp_path_factory.mktemp("tiny"), dtype=torch.bfloat16)


def scattered(folder: Path, target: Path, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)) -> Path:
    """The same model in three shards, its tensors in an order of chance and in turn of these types."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    random.Random(5).shuffle(names)
    where: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard}.safetensors"
        mine = names[shard::3]
        kinds = {name: dtypes[_kind_of(name) % len(dtypes)] for name in mine}
        save_file({name: tensors[name].to(kinds[name]) for name in mine}, target / file)
        where |= dict.fromkeys(mine, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return target


def _kind_of(name: str) -> int:
    """The same number for a matrix of every layer and expert."""
    return sum(ord(c) for c in name if c.isalpha() or c == "_")


def dense(model: DeviceModel) -> list[torch.Tensor]:
    """Everything that a model holds, as rows."""
    matrices = [matrix for layer in model.layers for matrix in layer.matrices()] + [model.embed, model.head]
    norms = [layer.norm for layer in model.layers] + [model.final_norm]
    return [matrix.dense(Scratch(CPU)).clone() for matrix in matrices] + norms


def wanted(weights: ModelWeights) -> list[torch.Tensor]:
    """The same from the weights as the CPU path sees them."""
    config = weights.config
    groups, dims = config.n_kv_heads, config.head_dim

    def all_of(layer: int, kind: WeightKind) -> torch.Tensor:
        tensor = weights.need(layer, kind)
        return torch.stack([tensor.dequantize(e) for e in range(tensor.count)]).bfloat16()

    matrices: list[torch.Tensor] = []
    for i, spec in enumerate(config.layers):
        q, k, v = (
            all_of(i, kind)[0].view(groups, -1, config.hidden) for kind in (WeightKind.Q, WeightKind.K, WeightKind.V)
        )
        matrices += [torch.cat([q, k, v], 1).view(1, -1, config.hidden), all_of(i, WeightKind.O)]
        kinds = (WeightKind.GATE, WeightKind.UP, WeightKind.DOWN)
        if spec.moe:
            matrices.append(all_of(i, WeightKind.ROUTER))
            kinds = (WeightKind.EXPERT_GATE, WeightKind.EXPERT_UP, WeightKind.EXPERT_DOWN)
        gate, up, down = (all_of(i, kind) for kind in kinds)
        matrices += [torch.stack([x.unflatten(1, (-1, 8)) for x in (gate, up)], 2).flatten(1, 3), down]
    embed = all_of(config.n_layers, WeightKind.EMBED)
    norms = [weights.need(i, WeightKind.NORM_ATTN).dequantize().view(-1) for i in range(config.n_layers)]
    last = weights.need(config.n_layers, WeightKind.FINAL_NORM).dequantize().view(-1)
    assert dims and config.tied
    return [*matrices, embed, embed, *norms, last]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_every_matrix_arrives_whatever_the_size_of_the_blocks(folder: Path, block_bytes: int, packed: bool) -> None:
    weights = open_weights(folder)
    model, report = load_model(weights, CPU, packed=packed, block_bytes=block_bytes)
    for ours, theirs in zip(dense(model), wanted(weights), strict=True):
        assert torch.equal(ours.view(theirs.shape), theirs)
    assert report.n_bytes == weights.stored_bytes
    assert "loaded 0.0 GB" in report.describe()


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.float32, torch.bfloat16, torch.float16)])
def test_shards_in_any_order_and_type_load_the_same(
    folder: Path, tmp_path: Path, dtypes: tuple[torch.dtype, ...], block_bytes: int
) -> None:
    weights = open_weights(scattered(folder, tmp_path / "shards", dtypes))
    for ours, theirs in zip(dense(load_model(weights, CPU, block_bytes=block_bytes)[0]), wanted(weights), strict=True):
        assert torch.equal(ours.view(theirs.shape), theirs)


def test_experts_of_different_types_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(tensors) if "experts.1." in name)
    tensors[name] = tensors[name].float()
    other = scattered(folder, tmp_path / "other")
    (other / "model.safetensors.index.json").unlink()
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(ModelError, match=r"experts\.0\..* and its sister experts have different formats"):
        load_model(open_weights(other), CPU)


def test_a_file_that_was_cut_after_it_was_opened_is_named(folder: Path, tmp_path: Path) -> None:
    weights = open_weights(scattered(folder, tmp_path / "shards"))
    cut = tmp_path / "shards" / "model-1.safetensors"
    size = cut.stat().st_size
    os.truncate(cut, size - 5000)
    with pytest.raises(ModelError, match=rf"model-1\.safetensors ends at byte {size - 5000}; \d+ bytes .* cut short"):
        load_model(weights, CPU)


def test_a_file_that_went_away_after_it_was_opened_is_named(folder: Path, tmp_path: Path) -> None:
    weights = open_weights(scattered(folder, tmp_path / "shards"))
    (tmp_path / "shards" / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*model-2\.safetensors: No such file"):
        load_model(weights, CPU)


def test_a_read_that_fails_is_named_with_its_place(tmp_path: Path) -> None:
    file = OpenFiles([tmp_path])  # a folder opens, but cannot be read
    with pytest.raises(ModelError, match=rf"cannot read {tmp_path} at byte 7: Is a directory"):
        file.read_all([(Extent(tmp_path, 7, 2), memoryview(bytearray(2)))])
    file.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 190), st.integers(1, 9)), max_size=40), st.integers(1, 50))
def test_scattered_reads_fill_their_memory_even_when_the_system_gives_a_few_bytes_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, wishes: list[tuple[bool, int, int]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / "a", folder / "b"]
    contents = {path: random.Random(path.name).randbytes(200) for path in paths}
    for path, content in contents.items():
        path.write_bytes(content)
    extents = [Extent(paths[which], begin, n) for which, begin, n in wishes]
    memories = [bytearray(extent.n_bytes) for extent in extents]
    whole_preadv = os.preadv

    def stingy(file: int, views: list[memoryview], offset: int) -> int:
        assert len(views) <= 1000
        return whole_preadv(file, [views[0][:most]], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reads.os, "preadv", stingy)
        files = OpenFiles(paths)
        files.read_all([(e, memoryview(m)) for e, m in zip(extents, memories, strict=True)])
        files.close()
    for extent, memory in zip(extents, memories, strict=True):
        assert memory == contents[extent.path][extent.begin : extent.begin + extent.n_bytes]


def test_neighbours_in_a_file_are_read_with_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)))
    calls: list[tuple[int, list[int]]] = []
    preadv = os.preadv

    def watched(file: int, views: list[memoryview], offset: int) -> int:
        calls.append((offset, [len(view) for view in views]))
        return preadv(file, views, offset)

    monkeypatch.setattr(file_reads.os, "preadv", watched)
    files = OpenFiles([path])
    files.read_all([(Extent(path, begin, 10), memoryview(bytearray(10))) for begin in (30, 0, 10, 100, 20)])
    files.close()
    assert calls == [(0, [10, 10, 10, 10]), (100, [10])]


def test_pieces_come_in_order_with_their_values_from_more_blocks_than_there_are_readers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    values = torch.arange(3000, dtype=torch.int16)
    path.write_bytes(values.numpy().tobytes())
    pieces = [
        Piece([Extent(path, 2 * i, 2), Extent(path, 2 * i + 2, 2 * (i % 90))], torch.int16, (i % 90 + 1,), len)
        for i in range(2900)
    ]
    times = StagingTimes(3)
    for i, (piece, found) in enumerate(staged(pieces, CPU, times, block_bytes=1024)):
        assert piece is pieces[i] and torch.equal(found, values[i : i + i % 90 + 1])
    assert times.read_s > 0
