"""Weights in the order in which the decode megakernel streams them (`PackPlan` in csrc/mk_params.h).

A (rows, K) matrix is cut into tiles of 16 rows; a tile is a run of 16 x 16 "k-tiles", each 512 bytes in the order of
an mma.m16n8k16 A fragment. K is padded with zero k-tiles so that all stages of a tile are equally long, in eights. In
a k-tile, element (8 hi + g, 8 b + 2 t + e) lies at [g][t][b][hi][e].

Letters: M tiles of 16 rows, J k-tiles of a row (padded), E matrices of a bank, F hidden units, C head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE = 16
FRAGMENT = 256  # values of one k-tile


@dataclass(frozen=True, slots=True)
class PackPlan:
    """How K is cut: `stages` ring stages a tile, each of `octets` x 8 k-tiles."""

    stages: int
    octets: int

    @classmethod
    def of(cls, k: int) -> PackPlan:
        """The plan for reduction length `k`; the same rule as in csrc/mk_params.h."""
        octets = -(-k // (TILE * 8))
        stages = -(-octets // 4)
        return cls(stages, -(-octets // stages))

    @property
    def k_tiles(self) -> int:
        """k-tiles of a row of tiles, padding included."""
        return self.stages * self.octets * 8


def packed_shape(rows: int, k: int, count: int = 1) -> tuple[int, int, int, int]:
    """(E, M, J, 256): the shape of `count` packed (rows, k) matrices; a last tile that is not full is padded."""
    return count, -(-rows // TILE), PackPlan.of(k).k_tiles, FRAGMENT


def packed_bytes(rows: int, k: int, count: int = 1) -> int:
    """Bytes of `count` packed (rows, k) matrices in bf16."""
    e, m, j, values = packed_shape(rows, k, count)
    return e * m * j * values * 2


def empty_packed(rows: int, k: int, count: int = 1, *, device: torch.device) -> torch.Tensor:
    """(E, M, J, 256) bf16 whose padding is zero; the rest is not set."""
    shape = packed_shape(rows, k, count)
    packed = torch.empty(shape, dtype=torch.bfloat16, device=device)
    if k < shape[2] * TILE:
        packed[:, :, k // TILE :] = 0
    if rows % TILE:
        packed[:, -1] = 0
    return packed


def pack_rows(out: torch.Tensor, rows: torch.Tensor) -> None:
    """Writes rows (E, n, K), n and K multiples of 16, into the tiles out (E, n / 16, J, 256)."""
    count, n, k = rows.shape
    source = rows.view(torch.int32).view(count, n // TILE, 2, 8, k // TILE, 2, 4)  # E M hi g J b t
    _fragments(out, k).copy_(source.permute(0, 1, 4, 3, 6, 5, 2))


def pack_half_rows(out: torch.Tensor, rows: torch.Tensor, half: int) -> None:
    """Writes rows (E, n, K), n a multiple of 8, as rows 8 half .. 8 half + 7 of the tiles out (E, n / 8, J, 256)."""
    count, n, k = rows.shape
    source = rows.view(torch.int32).view(count, n // 8, 8, k // TILE, 2, 4)  # E M g J b t
    _fragments(out, k)[..., half].copy_(source.permute(0, 1, 3, 2, 5, 4))


def pack_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """(1, M, J, 256) of a (rows, K) bf16 matrix; K a multiple of 16, rows padded to one."""
    rows, k = matrix.shape
    packed = empty_packed(rows, k, device=matrix.device)
    whole = rows // TILE * TILE
    if whole:
        pack_rows(packed[:, : whole // TILE], matrix[None, :whole])
    if whole < rows:
        last = torch.zeros(1, TILE, k, dtype=torch.bfloat16, device=matrix.device)
        last[0, : rows - whole] = matrix[whole:]
        pack_rows(packed[:, whole // TILE :], last)
    return packed


def group_tiles(packed: torch.Tensor, n_kv_heads: int, head_dim: int, n_heads: int) -> dict[str, torch.Tensor]:
    """Views of a packed QKV matrix, whose rows are grouped by KV head: "q", "k" and "v", each (G, tiles, J, 256)."""
    per_head, q_tiles = head_dim // TILE, n_heads // n_kv_heads * head_dim // TILE
    grouped = packed[0].view(n_kv_heads, q_tiles + 2 * per_head, *packed.shape[2:])
    return {
        "q": grouped[:, :q_tiles],
        "k": grouped[:, q_tiles : q_tiles + per_head],
        "v": grouped[:, q_tiles + per_head :],
    }


def unpack(packed: torch.Tensor, rows: int, k: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """(E, rows, K) bf16 of a packed (E, M, J, 256) bank, written to `out` (contiguous, that shape) when given."""
    count = packed.shape[0]
    if out is None:
        out = torch.empty(count, rows, k, dtype=torch.bfloat16, device=packed.device)
    if packed.is_cuda and rows % TILE == 0:
        from .triton_kernels import unpack_tiles

        unpack_tiles(packed, out)
        return out
    source = packed.view(count, -1, packed.shape[2], 8, 4, 2, 2, 2)[:, :, : k // TILE]  # E M J g t b hi e
    whole = source.permute(0, 1, 6, 3, 2, 5, 4, 7).reshape(count, -1, k)
    return out.copy_(whole[:, :rows])


def unpack_row_ids(packed: torch.Tensor, ids: torch.Tensor, k: int) -> torch.Tensor:
    """Rows `ids` (T,) int64 of matrix 0 of a packed bank: (T, K) bf16. Embeddings of a tied head."""
    tiles = packed[0].view(packed.shape[1], packed.shape[2], 8, 4, 2, 2, 2)  # M J g t b hi e
    row = ids % TILE
    chosen = tiles[ids // TILE, :, row % 8, :, :, row // 8]  # T J t b e
    return chosen.transpose(2, 3).flatten(1)[:, :k].contiguous()


def _fragments(out: torch.Tensor, k: int) -> torch.Tensor:
    """A view (E, M, K / 16, g, t, b, hi) int32, two values a word, of tiles (E, M, J, 256) without the padding."""
    return out[:, :, : k // TILE].view(torch.int32).unflatten(3, (8, 4, 2, 2))
