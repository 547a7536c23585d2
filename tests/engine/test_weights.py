"""Opening models: both file formats, both expert layouts, every block format, and refusals that name what is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pointcode_local.engine.dequant import dequantize_rows
from pointcode_local.engine.errors import ModelError
from pointcode_local.engine.gguf import read_gguf
from pointcode_local.engine.model_files import open_model
from pointcode_local.engine.models.fields import dense_config_from_gguf
from pointcode_local.engine.models.reference import TorchModel, full_logits
from pointcode_local.engine.tensor_files import BLOCK, read_safetensors, row_bytes_of
from pointcode_local.engine.weights import WeightFormat, WeightKind, open_weights

from .tiny_gguf import GgufFamily, make_tiny_gguf
from .tiny_models import build_reference, checkpoint_tensors, make_tiny

HALVES_AT = {
    WeightFormat.Q6_K: (208,),
    **dict.fromkeys((WeightFormat.Q4_1, WeightFormat.Q5_1), (0, 2)),
} | dict.fromkeys((WeightFormat.Q4_K, WeightFormat.Q5_K), (0, 2))


def random_blocks(format: WeightFormat, rows: int, cols: int) -> np.ndarray:
    """Random bytes whose fp16 scales are finite."""
    rng = np.random.default_rng(int(format))
    data = rng.integers(0, 256, (rows, row_bytes_of(format, cols)), dtype=np.uint8)
    blocks = data.reshape(-1, BLOCK[format][1])
    for at in HALVES_AT.get(format, (0,)):
        blocks[:, at : at + 2] = rng.normal(0, 1, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return data


@pytest.mark.parametrize("format", [f for f in WeightFormat if f > WeightFormat.BF16])
def test_blocks_are_dequantised_bit_for_bit_as_gguf_does(format: WeightFormat) -> None:
    data = random_blocks(format, 33, 512)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[format.name])
    assert np.array_equal(dequantize_rows(data, format, 512).numpy(), expected)


@pytest.mark.parametrize(
    ("format", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)]
)
def test_plain_formats_are_read_as_they_are(format: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = open_weights(make_tiny("llama", tmp_path / "m", dtype=dtype))
    q = weights.need(1, WeightKind.Q)
    stored = load_file(tmp_path / "m" / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    assert q.format == WeightFormat[format] and (q.rows, q.cols, q.count) == (128, 64, 1)
    assert torch.equal(q.dequantize(), stored.float())
    assert torch.equal(q.dequantize_rows(torch.tensor([5, 0, 5])), stored.float()[[5, 0, 5]])


def test_norms_and_biases_are_f32_whatever_the_file_holds(tmp_path: Path) -> None:
    weights = open_weights(make_tiny("qwen2", tmp_path / "m", dtype=torch.bfloat16))
    for kind in (WeightKind.NORM_ATTN, WeightKind.NORM_FFN, WeightKind.Q_BIAS, WeightKind.V_BIAS):
        assert weights.need(0, kind).format == WeightFormat.F32
    assert weights.need(0, WeightKind.V_BIAS).cols == 32
    assert weights.get(0, WeightKind.ROUTER) is None


def test_matrices_are_maps_of_the_file_not_copies(tmp_path: Path) -> None:
    weights = open_weights(make_tiny("qwen2", tmp_path / "m"))
    owner: Any = weights.need(0, WeightKind.Q).data
    while getattr(owner, "base", None) is not None and not isinstance(owner, np.memmap):
        owner = owner.base
    assert isinstance(owner, np.memmap)


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_both_expert_layouts_hold_the_same_matrices(prefix: str, tmp_path: Path) -> None:
    apart = open_weights(make_tiny("cohere2_moe", tmp_path / "a", prefix=prefix))
    fused = open_weights(make_tiny("cohere2_moe", tmp_path / "f", experts="fused", prefix=prefix))
    for kind in (WeightKind.EXPERT_GATE, WeightKind.EXPERT_UP, WeightKind.EXPERT_DOWN):
        a, f = apart.need(3, kind), fused.need(3, kind)
        assert (a.rows, a.cols, a.count) == (f.rows, f.cols, f.count) and a.count == 8
        for e in range(8):
            assert torch.equal(a.dequantize(e), f.dequantize(e))
    assert apart.get(0, WeightKind.ROUTER) is None and apart.get(0, WeightKind.GATE) is not None
    ids = list(range(20))
    assert torch.equal(full_logits(TorchModel(apart), ids), full_logits(TorchModel(fused), ids))


def test_a_sharded_checkpoint_opens_like_a_single_file(tmp_path: Path) -> None:
    single = open_weights(make_tiny("llama", tmp_path / "single"))
    sharded = make_tiny("llama", tmp_path / "sharded")
    tensors = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, inside in shards.items():
        save_file({n: tensors[n] for n in inside}, sharded / shard)
    weight_map = {n: shard for shard, inside in shards.items() for n in inside}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ids = [1, 2, 3]
    assert torch.equal(full_logits(TorchModel(open_weights(sharded)), ids), full_logits(TorchModel(single), ids))
    (sharded / "b.safetensors").unlink()
    with pytest.raises(ModelError, match="b.safetensors"):
        open_weights(sharded)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_gguf_file_gives_the_logits_of_its_rounded_weights(family: GgufFamily, quant: str, tmp_path: Path) -> None:
    path, reference = make_tiny_gguf(family, tmp_path / "m.gguf", quant=quant)
    files = open_model(path)
    assert files.config.rope_interleaved == (family == "llama")
    ids = list(range(70))
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(full_logits(TorchModel(files.weights), ids), expected, atol=1e-4, rtol=0)


def test_our_gguf_reader_sees_what_the_gguf_package_sees(tmp_path: Path) -> None:
    path, _ = make_tiny_gguf("llama", tmp_path / "m.gguf", quant="Q4_0")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == field.contents(), name
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].data.tobytes() == tensor.data.tobytes(), tensor.name


# ---------------------------------------------------------------------------------------------------------- refusals
def rewritten(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"model_type": "gpt_neox"}, "gpt_neox"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1.0}}, "llama3"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("cohere2_moe", {"num_shared_experts": 2}, "num_shared_experts"),
        ("cohere2_moe", {"expert_selection_fn": "relu"}, "relu"),
        ("cohere2_moe", {"layer_types": ["full_attention"] * 5 + ["chunked"]}, "chunked"),
        ("llama", {"hidden_size": "64"}, "hidden_size"),
        ("llama", {"num_attention_heads": None}, "num_attention_heads"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads = 0 is not from 1"),
        ("qwen2", {"num_hidden_layers": 2**32 - 1}, "num_hidden_layers = 4294967295 is not from 1 to 4,096"),
        ("cohere2_moe", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        ("cohere2_moe", {"first_k_dense_replace": -1}, "first_k_dense_replace = -1"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    family: Any, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = rewritten(make_tiny(family, tmp_path / "m"), **changes)
    with pytest.raises(ModelError, match=words):
        open_weights(folder)


def test_numbers_of_a_gguf_file_that_no_model_can_have_are_refused(tmp_path: Path) -> None:
    metadata = read_gguf(make_tiny_gguf("llama", tmp_path / "m.gguf")[0]).metadata
    for name, value in (("attention.head_count", 0), ("block_count", 2**32 - 1), ("attention.key_length", -16)):
        with pytest.raises(ModelError, match=f"{name} = {value}"):
            dense_config_from_gguf(
                {**metadata, "pointcode.vocab": 320, f"llama.{name}": value},
                "llama",
                attention_bias=False,
                rope_interleaved=True,
            )


def test_missing_unknown_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    folder = make_tiny("qwen2", tmp_path / "m")
    tensors = checkpoint_tensors(build_reference("qwen2"))
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    tensors["model.norm.weight"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError) as refusal:
        open_weights(folder)
    for name in ("layers.1.mlp.up_proj", "layers.0.self_attn.q_norm", "model.norm.weight has shape"):
        assert name in str(refusal.value)


def test_a_tied_head_stored_twice_is_accepted(tmp_path: Path) -> None:
    folder = make_tiny("qwen2", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    weights = open_weights(folder)
    last = weights.config.n_layers
    assert weights.need(last, WeightKind.LM_HEAD).rows == weights.need(last, WeightKind.EMBED).rows


@pytest.mark.parametrize("keep", [0, 4, 7, 20, 300, 5000])
def test_a_cut_file_is_refused_not_crashed_on(keep: int, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "m")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(ModelError):
        open_weights(folder)
    path, _ = make_tiny_gguf("llama", tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError):
        open_weights(path)


def gguf_with(type_id: int, value: bytes, name: bytes = b"general.alignment") -> bytes:
    """A GGUF file of one metadata field and no tensor."""
    field = struct.pack("<Q", len(name)) + name + struct.pack("<I", type_id) + value
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gguf_with(4, struct.pack("<I", 0)), "alignment is 0"),
        (gguf_with(5, struct.pack("<i", -32)), "alignment is -32"),
        (gguf_with(6, struct.pack("<f", 1.5)), "alignment is 1.5"),
        (gguf_with(8, struct.pack("<Q", 1) + b"x"), "alignment is 'x'"),
        (gguf_with(9, struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 4, 0), b"k"), "nested too deep"),
    ],
)
def test_metadata_that_no_gguf_file_can_have_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=words):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("number", ["1e999", "Infinity", "NaN", "[]", "null"])
def test_a_size_that_is_no_number_is_refused(number: str, tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 4]}}' % number.encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ModelError, match="the header's entry of a is damaged"):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_that_is_nested_without_end_is_refused_like_any_damage(name: str, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "m")
    (folder / name).write_text("[" * 200_000)
    with pytest.raises(ModelError, match=name):
        open_model(folder)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="config.json"):
        open_model(tmp_path)


def test_end_ids_come_from_config_generation_config_and_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny("cohere2_moe", tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 9]}))
    files = open_model(folder)
    assert files.stop_ids == {4, 9} and files.is_small
    assert files.config.n_params == sum(
        p.numel() for n, p in build_reference("cohere2_moe").named_parameters() if "norm" not in n
    )
