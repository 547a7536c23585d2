"""Types of the native extension (csrc/bindings.cc)."""

from enum import IntEnum, IntFlag

import numpy as np

TASK_DTYPE: np.dtype[np.void]
"""One task descriptor: 32 x int32, field names as in csrc/task.h (wait_counter and wait_target hold 3, reserved 11)."""

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
    def wait_queries(self, timeout_s: float) -> list[tuple[int, int, list[int]]]:
        """(request, tokens generated, the last of them) for every row that waits for a mask."""
    def answer(self, request: int, n_generated: int, mask: np.ndarray | None = None) -> None: ...
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
