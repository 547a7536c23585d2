"""Types of the native extension (csrc/bindings*.cc)."""

from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

TASK_DTYPE: np.dtype[np.void]
"""One task descriptor: 32 x int32, field names as in csrc/task.h (wait_counter and wait_target hold 3, reserved 10)."""

def task_dtype() -> np.dtype[np.void]: ...

TILE_ROWS: int
PAGE_TOKENS: int
MAX_ROWS: int
MAX_WAITS: int
NONE: int

class Opcode(IntEnum):
    """What a task does; docs/tasks.md has the contract."""

    ADD_RMSNORM = 0
    QKV_PROJ = 1
    ATTN_DECODE = 2
    ATTN_DRAIN = 3
    ATTN_COMBINE = 4
    O_PROJ = 5
    FFN_UPGATE_ACT = 6
    FFN_DOWN = 7
    ROUTER_GEMM = 8
    ROUTER_TOPK = 9
    ROUTE_FINALIZE = 10
    MOE_GATHER = 11
    MOE_UPGATE_ACT_DRAIN = 12
    MOE_DOWN_DRAIN = 13
    MOE_COMBINE = 14
    LM_HEAD = 15

class TaskFlag(IntFlag):
    """Variants of a task."""

    ROPE = 1
    SLIDING = 2
    FUSED_NORM = 4
    FUSED_TOPK = 8
    SLICED = 16
    ADD_ATTN = 32
    ADD_FFN = 64
    ADD_RESIDUAL = 128
    FFN_NORM = 256
    FINAL = 512

# ------------------------------------------------------------------ decode service
MAX_LOGPROBS: int

class RowEnd(IntEnum):
    """Why a row takes part in no more steps."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    NAN = 4
    BACKEND = 5

class Notice(IntFlag):
    """What the control thread is told."""

    ENDED = 1
    PAGES = 2
    FAILED = 4
    WOKEN = 8

class TokenFlag(IntFlag):
    """What a record of the token ring says."""

    VALID = 1
    END_STOP = 2
    END_LENGTH = 4
    END_NAN = 8
    END_BACKEND = 16

class SamplingConfig:
    """Native form of engine.types.SamplingParams."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: list[tuple[int, float]] = ...,
        seed: int = 0,
        n_logprobs: int = 0,
    ) -> None: ...

class StepBackend:
    """A backend the decode service can drive (csrc/step_backend.h)."""

    @property
    def name(self) -> str: ...

class DecodeService:
    """The decode thread (csrc/decode_service.h). Changes to rows, pages and backend need it parked."""

    def __init__(self, ring_capacity: int = 4096) -> None: ...
    def park(self, timeout_s: float) -> bool: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def set_backend(self, backend: StepBackend | None) -> None: ...
    def set_drafts(self, enabled: bool) -> None:
        """Whether prompt-lookup drafts are tried, on a backend that can."""
    def set_run_ahead(self, enabled: bool) -> None:
        """Whether steps are launched before the last one has given its results, on a backend that can. At first on."""
    def add_row(
        self,
        request: int,
        history: np.ndarray,
        max_tokens: int,
        stop_ids: list[int],
        sampling: SamplingConfig,
        full_pages: np.ndarray,
        sliding_pages: np.ndarray,
        mask: np.ndarray | None = None,
        watch: np.ndarray | None = None,
    ) -> None: ...
    def set_pages(self, request: int, group: int, pages: np.ndarray) -> None: ...
    def rows(self) -> list[tuple[int, RowEnd, int, int, int]]:
        """(request, end, tokens in the cache, tokens generated, logical pages) of every row."""
    def remove_row(self, request: int) -> list[int]:
        """Returns prompt and output ids."""
    def wait_notices(self, timeout_s: float) -> int: ...
    def wake(self) -> None: ...
    def cancel(self, request: int) -> bool: ...
    def set_shared(self, shared: bool) -> None:
        """While a prompt is computed on the device of a backend that runs ahead: steps leave it half of the time."""
    def wait_queries(self, timeout_s: float) -> list[tuple[int, int, list[int], list[int]]]:
        """(request, tokens generated, the last of them, a draft of the next ones) of every row that waits for masks."""
    def answer(self, request: int, n_generated: int, masks: Sequence[np.ndarray] = ()) -> None:
        """Masks for the next token and for those after 1, 2, … tokens of the draft; none: anything may follow."""
    def wake_masks(self) -> None: ...
    def drain(self, limit: int = 1024) -> list[tuple[int, int, int, dict[int, float] | None]]:
        """(request, token, TokenFlag bits, logprobs) records, oldest first."""
    @property
    def event_fd(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...
    @property
    def drafted(self) -> int:
        """Draft tokens that took part in a step."""
    @property
    def accepted(self) -> int:
        """Draft tokens that the model chose too."""

def look_up_draft(history: Sequence[int], max_tokens: int) -> tuple[int, list[int]]:
    """(length of the match, tokens): what followed the longest earlier occurrence of the history's end."""

# ------------------------------------------------------------------ model
class WeightFormat(IntEnum):
    """Storage of a weight; the Q formats are GGUF's, in their file layout."""

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
    """What a weight is for; the last three are per model and stored at layer = n_layers."""

    NORM_ATTN = 0
    Q = 1
    K = 2
    V = 3
    Q_BIAS = 4
    K_BIAS = 5
    V_BIAS = 6
    O = 7
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

class Weight:
    """A row-major (rows, cols) matrix at `address`, or `count` of them; the caller keeps the memory alive.

    Norms and biases are matrices of one row. Strides left at 0 mean densely packed.
    """

    def __init__(
        self,
        format: WeightFormat,
        address: int,
        rows: int,
        cols: int,
        count: int = 1,
        row_bytes: int = 0,
        matrix_bytes: int = 0,
    ) -> None: ...
    @property
    def format(self) -> WeightFormat: ...
    @property
    def address(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def matrix_bytes(self) -> int: ...

class LayerShape:
    """One layer; `intermediate` is the width of the dense FFN, or of one expert."""

    def __init__(self, *, rope: bool, sliding: bool, moe: bool, intermediate: int) -> None: ...
    @property
    def rope(self) -> bool: ...
    @property
    def sliding(self) -> bool: ...
    @property
    def moe(self) -> bool: ...
    @property
    def intermediate(self) -> int: ...

class ModelShape:
    """A model's sizes, constants and weights (csrc/model_shape.h). Set `n_layers` before the first `set_weight`."""

    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    n_layers: int
    n_experts: int
    top_k: int
    window: int
    parallel_block: bool
    rope_interleaved: bool
    layer_norm: bool
    norm_topk: bool
    softmax_router: bool
    eps: float
    rope_theta: float
    attn_scale: float
    logit_scale: float
    layers: list[LayerShape]
    def __init__(self) -> None: ...
    def set_weight(self, layer: int, kind: WeightKind, weight: Weight) -> None: ...
    def weight(self, layer: int, kind: WeightKind) -> Weight: ...

# ------------------------------------------------------------------ matrix helpers
class Isa(IntEnum):
    """Instruction sets of the CPU kernels."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_VNNI = 3

def best_isa() -> Isa: ...
def packed_row_bytes(format: WeightFormat, cols: int) -> int: ...
def dequantize(
    weight: Weight, out: NDArray[np.float32], index: int = 0, n_threads: int = 1, isa: Isa | None = None
) -> None:
    """Writes matrix `index` of the weight into the C-contiguous (rows, cols) array `out`. Releases the GIL."""

def linear(
    weight: Weight, x: NDArray[np.float32], index: int = 0, n_threads: int = 1, isa: Isa | None = None
) -> NDArray[np.float32]:
    """x (n, cols) times the transposed matrix: (n, rows). Meant for n <= 64. Releases the GIL."""

# ------------------------------------------------------------------ sampling
class RowStatus(IntEnum):
    """Whether a row of a step gave a token."""

    OK = 0
    NAN = 1

class RowResult:
    """A row's chosen token; `logprobs` holds (token, natural-log probability), the chosen token first."""

    @property
    def token(self) -> int: ...
    @property
    def status(self) -> RowStatus: ...
    @property
    def logprobs(self) -> list[tuple[int, float]]: ...

def sample(
    logits: NDArray[np.float32],
    config: SamplingConfig,
    position: int,
    token_mask: NDArray[np.uint32] | None = None,
    history: Sequence[int] = (),
) -> RowResult:
    """Samples as a decode step does. `position` is that of the token the (vocab,) logits follow."""

def token_noise(seed: int, position: int, token: int) -> float:
    """The uniform noise on (0, 1) that the draw gives a token (csrc/sampling.h)."""

# ------------------------------------------------------------------ CPU backend
ScheduleLists = tuple[Sequence[NDArray[np.void]], int, int]
"""(one contiguous TASK_DTYPE array per processor, number of counters, number of queues)"""

class StepRow:
    """One sequence of a step, for callers without the decode service. Pages map logical to physical pages."""

    token: int
    position: int
    history: list[int]
    def __init__(
        self,
        *,
        token: int,
        position: int,
        full_pages: NDArray[np.int32] = ...,
        sliding_pages: NDArray[np.int32] = ...,
        sampling: SamplingConfig = ...,
        token_mask: NDArray[np.uint32] | None = None,
        history: Sequence[int] = (),
    ) -> None: ...

class CpuBackend(StepBackend):
    """Runs task lists on one thread per processor (csrc/cpu_backend.h). Failures are RuntimeError; then rebuild it.

    k_pages and v_pages: per layer the address of (page, KV head, 64, head_dim) values of `kv_format` (F32, F16, BF16).
    schedules[n - 1]: the lists for n rows, or None. `owners` is kept alive with the backend (arrays that the model and
    the page addresses point into). `delay_seed` other than 0 delays tasks at random. isa None: the best there is.
    """

    def __init__(
        self,
        model: ModelShape,
        k_pages: Sequence[int],
        v_pages: Sequence[int],
        schedules: Sequence[ScheduleLists | None],
        *,
        kv_format: WeightFormat = ...,
        wait_limit_ms: int = 4000,
        delay_seed: int = 0,
        isa: Isa | None = None,
        max_splits: int = 1,
        owners: object = None,
    ) -> None: ...
    @property
    def n_processors(self) -> int: ...
    def step(self, rows: Sequence[StepRow]) -> list[RowResult]:
        """Embeds, runs the lists and samples."""

    def forward(self, rows: Sequence[StepRow]) -> NDArray[np.float32]:
        """Embeds and runs the lists; returns a copy of the logits (rows, vocab)."""

    def run_lists(self, rows: Sequence[StepRow], lists: ScheduleLists) -> None:
        """Runs these lists alone on the buffers as they are, for tests of single opcodes."""

    def record_steps(self, n: int) -> None:
        """Stamps every task of the next n steps and drops earlier stamps. Between steps only."""

    def stamps(self) -> list[NDArray[np.void]]:
        """Per processor an array with the fields step, taken, begun, ended (ns), ordinal, opcode, layer, tile_begin,
        tile_count."""

    def buffer(self, name: str) -> np.ndarray:
        """The named activation buffer of docs/tasks.md over the backend's memory, laid out for 8 rows."""

class LogitsBackend(StepBackend):
    """Samples from logits that `forward(tokens, positions, pages)` computes on the decode thread, under the GIL.

    tokens, positions: (rows,) int32. pages: a (full, sliding) pair of (n,) int32 tables per row when the batch changed,
    else None. Returns (rows, vocab) fp32, C-contiguous. An exception fails the backend.
    """

    def __init__(
        self,
        name: str,
        vocab: int,
        forward: Callable[
            [NDArray[np.int32], NDArray[np.int32], list[tuple[NDArray[np.int32], NDArray[np.int32]]] | None],
            NDArray[np.float32],
        ],
    ) -> None: ...

class DeferredBackend(StepBackend):
    """Runs ahead over a backend that does not: computes a launched step when its results are collected. For tests."""

    def __init__(self, inner: StepBackend) -> None: ...
    @property
    def n_under_way(self) -> int: ...
    @property
    def n_ahead(self) -> int:
        """Steps that were launched while another was under way."""

# ------------------------------------------------------------------ CUDA
HAS_CUDA: bool
"""Whether this build holds the megakernel; without it MegakernelBackend does not exist."""

def packed_products(
    weights: int,
    x: int,
    begins: int,
    ends: int,
    out: int,
    n_banks: int,
    rows: int,
    k: int,
    k_tiles: int,
    pitch: int,
    gated: bool,
    cluster: int,
    n_sms: int,
    stream: int,
) -> None:
    """Queues products from packed weights on a stream (csrc/prefill_gemm.h); addresses are the device's. RuntimeError
    for sizes that the kernel does not take. Exists, like the next two, where the build has CUDA."""

def gather_panels(x: int, source: int, panels: int, n_tokens: int, k: int, pitch: int, stream: int) -> None:
    """Queues the gathering of rows (csrc/prefill_gemm.h); `source` 0: in order."""

def prefill_attention(
    q: int,
    k: int,
    v: int,
    out: int,
    n_queries: int,
    n_keys: int,
    heads: int,
    groups: int,
    window: int,
    scale: float,
    n_sms: int,
    stream: int,
) -> None:
    """Queues causal attention (csrc/prefill_attention.h). RuntimeError for sizes that the kernel does not take."""

def gpu_sample(
    logits: NDArray[np.float32], rows: Sequence[StepRow], n_timed: int = 0
) -> tuple[list[RowResult], list[int], float]:
    """The GPU sampler alone on (rows, vocab) logits: results, the 8 positions afterwards, microseconds a launch."""

class MegakernelBackend(StepBackend):
    """Runs decode steps on the current CUDA device (csrc/megakernel_backend.h). Failures are RuntimeError:
    rebuild it then.

    layers: per layer the device addresses of qkv, o, router (0: none), upgate, down, norm, K pages, V pages.
    schedules[n - 1]: (tasks, offsets, attention splits, claim queues, counters, wave names) for n rows; 0 counters
    mean the lean order. `max_pages` bounds a row's page table.
    """

    def __init__(
        self,
        model: ModelShape,
        layers: Sequence[Sequence[int]],
        final_norm: int,
        lm_head: int,
        embed: int,
        schedules: Sequence[tuple[NDArray[np.void], NDArray[np.int32], int, int, int, Sequence[str]]],
        max_pages: int,
        wait_limit_ms: int = 10000,
        spin_limit: int = 4000000,
        owners: object = None,
    ) -> None: ...
    @property
    def n_sms(self) -> int: ...
    def step(self, rows: Sequence[StepRow]) -> list[RowResult]:
        """One step of these rows as a new batch."""

    def run(self, rows: Sequence[StepRow], n_steps: int, ahead: bool = True) -> tuple[float, NDArray[np.int32]]:
        """Steps that feed themselves: (seconds, tokens (n_steps, rows)). The rows' tokens and positions are updated.
        `ahead`: a step is launched before the tokens of the one before have come, as the decode service does."""

    def time_kernels(self, rows: Sequence[StepRow], tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> float:
        """Milliseconds of a step's kernel alone: the mean of these steps (steps, rows), launched back to back without
        sampling. `rows` are those of the first step; all steps have their pages and their chains. RuntimeError for a
        step outside the pages or the vocabulary."""

    def logits(self, row: int) -> NDArray[np.float32]:
        """(vocab,) of the last step."""

    def router_logits(self) -> NDArray[np.float32]:
        """(8, n_experts) of the last routed layer of the last step."""

    def set_trace(self, address: int, slots: int) -> None:
        """Where a build with POINTCODE_MK_TRACE writes time stamps (SMs, 256, 16) uint64; 0: nowhere."""

    def set_in_flight(self, n_bytes: int) -> None:
        """Bytes of the weight ring that each SM keeps under way."""

    def set_step(self, step: int) -> None:
        """The step counter, to test the wrap of the tag at 2^24."""

    def set_spin_limit(self, turns: int) -> None:
        """Bound of every wait on the GPU."""
