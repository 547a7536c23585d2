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
