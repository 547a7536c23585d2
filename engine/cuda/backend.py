"""The megakernel backend over device weights and KV pages, and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .. import _native
from ..errors import BackendError, ScheduleError
from ..kv_cache import KvCache, pages_for
from ..memo import Proofs
from ..models.config import ModelConfig
from ..plans import bare_shape, model_plan
from ..schedule_proofs import prove
from ..scheduler import Schedule, build
from ..tasks import ModelPlan
from .device_weights import DeviceLayer, DeviceModel, require_supported

MAX_ROWS = 8
MAX_SPLITS = 33  # attention splits that one combiner merges (csrc/mk_params.h)
ORDER = "lean"
HOPPER = (9, 0)
MAX_CLAIMED_WIDTH = 2048  # hidden units of an expert in the published orders: 16 k-tiles a warp


def megakernel_problem(config: ModelConfig) -> str | None:
    """Why the megakernel cannot run this model here, or None."""
    if not getattr(_native, "HAS_CUDA", False):
        return "the native extension was built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA device answers"
    capability = torch.cuda.get_device_capability()
    if capability != HOPPER:
        return f"compute capability {capability[0]}.{capability[1]} is not 9.0 (Hopper)"
    try:
        require_supported(config)
    except BackendError as error:
        return str(error)
    return None


def megakernel_schedules(
    config: ModelConfig, n_sms: int, *, order: str = ORDER, max_rows: int = MAX_ROWS, proofs: Proofs | None = None
) -> list[Schedule]:
    """Checked schedules for 1 .. max_rows rows; ScheduleError for one that must not run.

    The check runs on a shorter model in which every run of layers occurs, and not again for what `proofs` knows.
    """
    plan = model_plan(config)
    widest = max((layer.intermediate for layer in plan.layers if layer.moe), default=0)
    if order != ORDER and widest > MAX_CLAIMED_WIDTH:
        raise ScheduleError(f"the {order} order takes experts of up to {MAX_CLAIMED_WIDTH} units, not {widest}")
    n_splits = min(MAX_SPLITS, max(1, n_sms // config.n_kv_heads))

    def made(of: ModelPlan, n_rows: int) -> Schedule:
        return build(of, order=order, n_rows=n_rows, n_processors=n_sms, n_splits=n_splits)

    short = shortened(plan)
    prove(short, [made(short, n) for n in range(1, max_rows + 1)], proofs)
    return [made(plan, n) for n in range(1, max_rows + 1)]


def shortened(plan: ModelPlan) -> ModelPlan:
    """The first layers of a model, as many as it takes to see every kind of layer behind every two that precede it
    somewhere, and to end as the model ends. Waves of a layer depend on nothing further away."""
    layers = plan.layers
    runs = {layers[max(0, i - 2) : i + 1] for i in range(len(layers))}
    for n in range(1, len(layers)):
        seen = {layers[max(0, i - 2) : i + 1] for i in range(n)}
        if seen == runs and layers[max(0, n - 3) : n] == layers[-3:]:
            return replace(plan, layers=layers[:n])
    return plan


def megakernel_backend(
    model: DeviceModel,
    kv: KvCache,
    schedules: Sequence[Schedule],
    context_tokens: int,
) -> _native.MegakernelBackend:
    """The native backend; it keeps the weights and the cache alive. The pages of `kv` are in fragment order."""
    config = model.config
    layers = [_addresses(layer, *kv.layer(i)) for i, layer in enumerate(model.layers)]
    torch.cuda.synchronize(model.device)  # weights and pages are written on other streams
    return _native.MegakernelBackend(
        bare_shape(config),
        layers,
        model.final_norm.data_ptr(),
        model.head.data.data_ptr(),
        model.embed.data.data_ptr(),
        [(s.tasks, s.offsets, s.n_splits, s.n_queues, _counters(s), list(s.wave_names)) for s in schedules],
        pages_for(context_tokens) + 1,
        owners=(model, kv),
    )


def _counters(schedule: Schedule) -> int:
    """Counters that the kernel keeps; 0 chooses the lean kernel, which hands over without them."""
    return 0 if schedule.order == ORDER else schedule.n_counters


def _addresses(layer: DeviceLayer, k: torch.Tensor, v: torch.Tensor) -> list[int]:
    router = layer.router.data.data_ptr() if layer.router is not None else 0
    matrices = [layer.qkv.data.data_ptr(), layer.o.data.data_ptr(), router]
    matrices += [layer.upgate.data.data_ptr(), layer.down.data.data_ptr()]
    return [*matrices, layer.norm.data_ptr(), k.data_ptr(), v.data_ptr()]
