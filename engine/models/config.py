"""What a backend must know about a model, and the enums shared with csrc/model_shape.h."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class WeightFormat(IntEnum):
    """How a tensor's numbers are stored; the same values as `WeightFormat` in csrc/model_shape.h.

    The block layouts of the Q formats are GGUF's.
    """

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10


class WeightKind(IntEnum):
    """The role of a tensor; the same values as `WeightKind` in csrc/model_shape.h. The last three are per model."""

    NORM_ATTN = 0
    Q = 1
    K = 2
    V = 3
    Q_BIAS = 4
    K_BIAS = 5
    V_BIAS = 6
    O = 7  # noqa: E741
    NORM_FFN = 8
    GATE = 9
    UP = 10
    DOWN = 11
    ROUTER = 12
    EXPERT_GATE = 13
    EXPERT_UP = 14
    EXPERT_DOWN = 15
    FINAL_NORM = 16
    LM_HEAD = 17
    EMBED = 18


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: whether it rotates q and k, sees only the window, routes to experts; the hidden width of its FFN
    (of one expert where `moe`)."""

    rope: bool
    sliding: bool
    moe: bool
    intermediate: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a model; the fields mean what they mean in csrc/model_shape.h.

    `window` counts keys including the current one (0: no layer slides). `eos_ids` are what the model's own files
    state. `attention_bias` is a bias on q, k and v.
    """

    family: str
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    layers: tuple[LayerSpec, ...]
    eps: float
    rope_theta: float
    max_positions: int
    tied: bool
    n_experts: int = 0
    top_k: int = 0
    window: int = 0
    parallel_block: bool = False
    rope_interleaved: bool = False
    layer_norm: bool = False
    norm_topk: bool = False
    softmax_router: bool = False
    attention_bias: bool = False
    logit_scale: float = 1.0
    eos_ids: tuple[int, ...] = ()

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def attn_scale(self) -> float:
        """Factor on the attention scores."""
        return self.head_dim**-0.5

    @property
    def n_params(self) -> int:
        """Number of parameters of all matrices, a tied head counted once."""
        attention = self.hidden * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)
        ffn = sum(3 * self.hidden * s.intermediate * (self.n_experts if s.moe else 1) for s in self.layers)
        routers = sum(self.hidden * self.n_experts for s in self.layers if s.moe)
        return attention * self.n_layers + ffn + routers + self.vocab * self.hidden * (1 if self.tied else 2)


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture: its tensor names inside a layer and its readers of a configuration.

    `expert_names` has "{e}" where the expert's number stands; `fused_experts` names the tensors of the layout that
    holds all experts: (gate over up, down).
    """

    name: str
    layer_names: Mapping[WeightKind, str]
    config_from_hf: Callable[[Mapping[str, object]], ModelConfig]
    gguf_layer_names: Mapping[WeightKind, str] | None = None
    config_from_gguf: Callable[[Mapping[str, object]], ModelConfig] | None = None
    expert_names: Mapping[WeightKind, str] | None = None
    fused_experts: tuple[str, str] | None = None
