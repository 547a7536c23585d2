"""Draws decode-speed.svg from the measured figures of kernel-log.md: python docs/decode_speed.py (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "pointcode", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402 - the backend comes first

from pointcode_local.engine.bench.gpu_report import MEASURED_TB_PER_S, step_gb, uniform_experts  # noqa: E402
from pointcode_local.engine.cuda.random_weights import north_mini  # noqa: E402

# One H200, random bf16 weights, uniform routing: bench decode, greedy; the baseline is of the same run.
BY_CONTEXT = {1024: 563.2, 8192: 555.2, 32768: 517.3, 131072: 401.0, 262144: 307.1}  # batch 1
BY_BATCH = {1: (555.2, 253.7), 2: (753.3, 388.7), 4: (910.8, 553.9), 8: (1077.2, 705.9)}


def ceiling(batch: int, context_tokens: int) -> float:
    """Tokens a second when a step only reads its bytes, at the measured speed of this card's memory."""
    config = north_mini()
    gigabytes = step_gb(config, batch, context_tokens, uniform_experts(config, batch))
    return batch * MEASURED_TB_PER_S * 1e3 / gigabytes


def main() -> None:
    """Writes the picture beside this file."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), constrained_layout=True)
    contexts = sorted(BY_CONTEXT)
    left.plot(contexts, [ceiling(1, c) for c in contexts], "k--", label="memory ceiling (4.60 TB/s)")
    left.plot(contexts, [BY_CONTEXT[c] for c in contexts], "o-", label="megakernel")
    left.set(xscale="log", xlabel="context (tokens)", ylabel="tokens/s", title="batch 1", ylim=(0, None))
    left.set_xticks(contexts, ["1K", "8K", "32K", "128K", "256K"])
    left.minorticks_off()
    batches = sorted(BY_BATCH)
    right.plot(batches, [ceiling(b, 8192) for b in batches], "k--", label="memory ceiling (4.60 TB/s)")
    for i, label in enumerate(("megakernel", "one kernel per operation")):
        right.plot(batches, [BY_BATCH[b][i] for b in batches], "o-", label=label)
    right.set(xscale="log", xlabel="sequences", ylabel="tokens/s, all sequences", title="8K context", ylim=(0, None))
    right.set_xticks(batches, [str(b) for b in batches])
    right.minorticks_off()
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="lower left" if axes is left else "upper left")
    figure.savefig(Path(__file__).with_name("decode-speed.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
