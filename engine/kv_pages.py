"""The memory of a page pool: in this process (NumPy, so that a start needs no torch) or on a device (torch).

Letters: L layers of the group, P pages, G KV heads, T = 64 tokens of a page, C head_dim. A page's bytes are K (L, G, T,
C), then V, in the pool's own element type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class HostPages:
    """fp32 pages in main memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        # NumPy's zeros take memory when they are first touched; torch.zeros would write all of them now.
        self._k = np.zeros(shape, np.float32)  # (L, P, G, T, C)
        self._v = np.zeros(shape, np.float32)  # (L, P, G, T, C)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V as torch sees the same memory."""
        import torch

        return torch.from_numpy(self._k), torch.from_numpy(self._v)

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where K and V of one layer of the group begin."""
        return self._k[layer].ctypes.data, self._v[layer].ctypes.data

    def copy(self, source: int, target: int) -> None:
        """Copies a page, all layers."""
        self._k[:, target] = self._k[:, source]
        self._v[:, target] = self._v[:, source]

    def read(self, page: int) -> bytes:
        """A page's bytes."""
        return np.stack((self._k[:, page], self._v[:, page])).tobytes()

    def write(self, page: int, data: bytes) -> None:
        """Fills a page with what `read` gave."""
        shape = (2, *self._k.shape[:1], *self._k.shape[2:])
        self._k[:, page], self._v[:, page] = np.frombuffer(data, np.float32).reshape(shape)


class DevicePages:
    """bf16 pages on a device."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        import torch

        self._k = torch.zeros(shape, dtype=torch.bfloat16, device=device)  # (L, P, G, T, C)
        self._v = torch.zeros(shape, dtype=torch.bfloat16, device=device)  # (L, P, G, T, C)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V."""
        return self._k, self._v

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where K and V of one layer of the group begin."""
        return self._k[layer].data_ptr(), self._v[layer].data_ptr()

    def copy(self, source: int, target: int) -> None:
        """Copies a page, all layers."""
        self._k[:, target] = self._k[:, source]
        self._v[:, target] = self._v[:, source]
        self._finish_writes()

    def read(self, page: int) -> bytes:
        """A page's bytes."""
        import torch

        return torch.stack((self._k[:, page], self._v[:, page])).cpu().view(torch.uint8).numpy().tobytes()

    def write(self, page: int, data: bytes) -> None:
        """Fills a page with what `read` gave."""
        import torch

        values = torch.frombuffer(bytearray(data), dtype=self._k.dtype)
        self._k[:, page], self._v[:, page] = values.view(2, *self._k.shape[:1], *self._k.shape[2:])
        self._finish_writes()

    def _finish_writes(self) -> None:
        """Waits for the device: the decode thread has a stream of its own."""
        import torch

        if self._k.is_cuda:
            torch.cuda.current_stream().synchronize()
