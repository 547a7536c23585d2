"""What a test of one opcode needs: rows with pages, random inputs as payloads, results as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pointcode_local.engine.cuda.device_weights import DeviceMatrix, Scratch
from pointcode_local.engine.kv_cache import SequencePages
from pointcode_local.engine.models.config import ModelConfig

from .kernel import Kernel, Row, Words

Inputs = dict[str, tuple[int, Words]]


@dataclass(slots=True)
class Bed:
    """A kernel, a number of rows, and where the case's random numbers come from. `longest`: tokens of a row at most."""

    kernel: Kernel
    n_rows: int
    dice: torch.Generator
    longest: int

    @property
    def config(self) -> ModelConfig:
        return self.kernel.model.config

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normal values, the same on every machine."""
        return torch.randn(*shape, generator=self.dice).to(self.kernel.device)

    def matrix(self, matrix: DeviceMatrix | None) -> torch.Tensor:
        """(count, rows, k) bf16 values."""
        assert matrix is not None
        return matrix.dense(Scratch(self.kernel.device))

    def rows(self, positions: list[int] | None = None) -> list[Row]:
        """Rows with pages of their own. Positions lie at borders of pages and of the window."""
        made: list[Row] = []
        for r, position in enumerate(positions or self.positions()):
            pages = SequencePages(self.kernel.kv)
            pages.grow(position + 1)
            made.append(Row(pages, 3 + r, position))
        return made

    def positions(self) -> list[int]:
        """One a row: the last place there is, then a choice of borders."""
        window = self.config.window
        borders = [0, 1, 63, 64, 65, 128, window - 1, window, window + 1, self.longest // 2]
        fitting = [p for p in borders if p < self.longest]
        order = torch.randperm(len(fitting), generator=self.dice).tolist()
        return [self.longest - 1, *(fitting[i] for i in order)][: self.n_rows]

    def run(self, waves: str, inputs: Inputs, rows: list[Row] | None = None) -> torch.Tensor:
        """Runs the waves on these rows, or on new ones that it releases; (R, V) logits."""
        used = rows or self.rows()
        logits = self.kernel.run_waves(waves.split(), used, inputs)
        if rows is None:
            release(used)
        return torch.from_numpy(logits).to(self.kernel.device)

    def normed(self, layer: int) -> tuple[Inputs, torch.Tensor]:
        """What the GEMMs of a layer read in this order, and the (R, D) values that they multiply."""
        if not self.kernel.lean:
            x = self.normal(self.n_rows, self.config.hidden).bfloat16()
            return {"normed": (layer, pairs(x))}, x.float()
        residual = self.normal(self.n_rows, self.config.hidden).bfloat16()
        last = layer == self.config.n_layers
        weight = self.kernel.model.final_norm if last else self.kernel.model.layers[layer].norm
        x = torch.nn.functional.rms_norm(residual.float(), (self.config.hidden,), weight, self.config.eps)
        return {"residual": (layer, pairs(residual))}, x

    @property
    def tolerance(self) -> float:
        """Of a product in fp32: the lean order rounds the normed values to bf16 on the way."""
        return 6e-3 if self.kernel.lean else 1e-4

    def floats(self, name: str, layer: int, *shape: int) -> torch.Tensor:
        """fp32 results of the last run."""
        words = self.kernel.results(name, int(np.prod(shape)), layer)
        return torch.from_numpy(words.view(np.float32)).view(shape).to(self.kernel.device)

    def bf16(self, name: str, layer: int, *shape: int) -> torch.Tensor:
        """bf16 results of the last run, as fp32."""
        words = self.kernel.results(name, int(np.prod(shape)) // 2, layer)
        return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).view(shape).to(self.kernel.device).float()


def floats(values: torch.Tensor) -> Words:
    """fp32 payloads."""
    return values.float().contiguous().cpu().numpy().reshape(-1).view(np.uint32)


def pairs(values: torch.Tensor) -> Words:
    """bf16 payloads, two a word."""
    return values.bfloat16().contiguous().view(torch.int16).cpu().numpy().reshape(-1).view(np.uint32)


def close(ours: torch.Tensor, wanted: torch.Tensor, relative: float) -> None:
    """Asserts that the whole differs by at most this part of its norm; a NaN never passes."""
    distance = float((ours - wanted).norm() / wanted.norm())
    assert distance <= relative, f"relative distance {distance:.2e} > {relative:.0e}"


def release(rows: list[Row]) -> None:
    """Gives the pages back."""
    for row in rows:
        row.pages.release()
