"""Every opcode of the decode megakernel alone, against torch: the cases that the emulation and the GPU both run.

A case makes fresh random inputs, runs one wave (or the two that only together leave a result) with everything else
poisoned, and checks what it leaves. Layer 0 of the model is dense with full attention, layer 1 slides and has experts.
Letters as in docs/tasks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES
from pointcode_local.engine.kv_cache import PAGE_TOKENS, pages_for
from pointcode_local.engine.models.config import ModelConfig
from pointcode_local.engine.models.reference import rotate

from .kernel import Row
from .opcode_bed import Bed, Inputs, close, floats, pairs, release

DENSE, EXPERTS = 0, 1  # layers
ROUTE_WORDS = 146


@dataclass(frozen=True, slots=True)
class Case:
    """`check` raises AssertionError when the kernel's results are not the reference's."""

    name: str
    orders: tuple[str, ...]
    check: Callable[[Bed], None]


CASES: list[Case] = []
ORDERS = ("shipped", "lean")


def case(*orders: str) -> Callable[[Callable[[Bed], None]], Callable[[Bed], None]]:
    """Registers a case for these orders; its name is the function's."""

    def register(check: Callable[[Bed], None]) -> Callable[[Bed], None]:
        CASES.append(Case(check.__name__, orders, check))
        return check

    return register


# ------------------------------------------------------------------------------------------------ norm and dense GEMMs
@case("shipped")
def add_rmsnorm(bed: Bed) -> None:
    config, model = bed.config, bed.kernel.model
    for wave, layer, weight in (
        ("L1.norm", 1, model.layers[1].norm),
        ("final.norm", config.n_layers, model.final_norm),
    ):
        before, o, ffn = (bed.normal(bed.n_rows, config.hidden) for _ in range(3))
        inputs = {name: (layer - 1, floats(x)) for name, x in (("residual", before), ("o_out", o), ("ffn_out", ffn))}
        bed.run(wave, inputs)
        wanted = before + o + ffn
        close(bed.floats("residual", layer, bed.n_rows, config.hidden), wanted, 1e-6)
        normed = torch.nn.functional.rms_norm(wanted, (config.hidden,), weight, config.eps)
        close(bed.bf16("normed", layer, bed.n_rows, config.hidden), normed, 4e-3)


@case(*ORDERS)
def qkv_proj(bed: Bed) -> None:
    for layer in (DENSE, EXPERTS):
        _qkv(bed, layer)


def _qkv(bed: Bed, layer: int) -> None:
    config, n, dims = bed.config, bed.n_rows, bed.config.head_dim
    inputs, x = bed.normed(layer)
    rows = bed.rows()
    for pool in bed.kernel.kv.layer(layer):
        pool.fill_(float("nan"))
    bed.run(f"L{layer}.qkv", inputs, rows)
    product = x @ bed.matrix(bed.kernel.model.layers[layer].qkv)[0].float().T
    grouped = product.view(n, config.n_kv_heads, -1, dims)  # N query heads, K, V of each KV head
    q, k, v = grouped[:, :, :-2], grouped[:, :, -2:-1], grouped[:, :, -1]
    if config.layers[layer].rope:
        q, k = (_rotated(config, part, rows) for part in (q, k))
    scale = config.attn_scale * 1.4426950408889634
    close(bed.bf16("q", layer, *q.shape), q * scale, 6e-3)
    tables = [row.pages.tables[bed.kernel.kv.group_of(layer)] for row in rows]
    places = [(t[row.position // PAGE_TOKENS], row.position % PAGE_TOKENS) for t, row in zip(tables, rows, strict=True)]
    for name, wanted, pool, is_value in zip(
        ("k_new", "v_new"), (k[:, :, 0], v), bed.kernel.kv.layer(layer), (False, True), strict=True
    ):
        ours = bed.floats(name, layer, n, config.n_kv_heads, dims)
        close(ours, wanted, 6e-3)
        stored = FRAGMENT_PAGES.load(pool, torch.arange(len(pool), device=pool.device), is_value=is_value)
        written = (~stored.isnan()).flatten(2).any(2).nonzero()  # (page, token) of every token that is not poison
        assert sorted(map(tuple, written.tolist())) == sorted(places), f"{name}: other tokens were written"
        at = torch.tensor(places, device=stored.device)
        assert torch.equal(stored[at[:, 0], at[:, 1]].float(), ours), f"{name}: the page holds something else"
    release(rows)


def _rotated(config: ModelConfig, heads: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    half = torch.arange(config.head_dim // 2, device=heads.device)
    positions = torch.tensor([row.position for row in rows], device=heads.device, dtype=torch.float32)
    angles = positions[:, None, None, None] / config.rope_theta ** (2 * half / config.head_dim)
    return rotate(heads, angles.cos(), angles.sin(), interleaved=True)


@case(*ORDERS)
def ffn_upgate_act(bed: Bed) -> None:
    layer, width = bed.kernel.model.layers[DENSE], bed.config.layers[DENSE].intermediate
    inputs, x = bed.normed(DENSE)
    bed.run("L0.upgate", inputs)
    wanted = _hidden_units(bed.matrix(layer.upgate)[0], x)
    close(bed.bf16("ffn", DENSE, bed.n_rows, width), wanted, 6e-3)


def _hidden_units(upgate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """silu(gate x) * up x of a (2 F, D) matrix whose rows alternate in runs of eight."""
    gate, up = upgate.float().view(-1, 2, 8, upgate.shape[1]).unbind(1)
    return torch.nn.functional.silu(x @ gate.flatten(0, 1).T) * (x @ up.flatten(0, 1).T)


@case("shipped")
def o_proj(bed: Bed) -> None:
    config = bed.config
    attn = bed.normal(bed.n_rows, config.n_heads * config.head_dim).bfloat16()
    for layer in (DENSE, EXPERTS):
        bed.run(f"L{layer}.o", {"attn": (layer, pairs(attn))})
        wanted = attn.float() @ bed.matrix(bed.kernel.model.layers[layer].o)[0].float().T
        close(bed.floats("o_out", layer, bed.n_rows, config.hidden), wanted, 1e-4)


@case("shipped")
def ffn_down(bed: Bed) -> None:
    config = bed.config
    hidden = bed.normal(bed.n_rows, config.layers[DENSE].intermediate).bfloat16()
    bed.run("L0.down", {"ffn": (DENSE, pairs(hidden))})
    wanted = hidden.float() @ bed.matrix(bed.kernel.model.layers[DENSE].down)[0].float().T
    close(bed.floats("ffn_out", DENSE, bed.n_rows, config.hidden), wanted, 1e-4)


@case("lean")
def o_proj_and_ffn_down_add_to_the_residual(bed: Bed) -> None:
    config, layer = bed.config, bed.kernel.model.layers[DENSE]
    attn = bed.normal(bed.n_rows, config.n_heads * config.head_dim).bfloat16()
    hidden = bed.normal(bed.n_rows, config.layers[DENSE].intermediate).bfloat16()
    bed.run("L0.o L0.down", {"attn": (DENSE, pairs(attn)), "ffn": (DENSE, pairs(hidden))})
    wanted = _embedded(bed) + attn.float() @ bed.matrix(layer.o)[0].float().T
    wanted += hidden.float() @ bed.matrix(layer.down)[0].float().T
    close(bed.bf16("residual", DENSE + 1, bed.n_rows, config.hidden), wanted, 3e-3)


def _embedded(bed: Bed) -> torch.Tensor:
    """(R, D) that every step begins with."""
    return bed.kernel.model.embed.row_ids(torch.arange(3, 3 + bed.n_rows, device=bed.kernel.device)).float()


@case(*ORDERS)
def router_gemm(bed: Bed) -> None:
    inputs, x = bed.normed(EXPERTS)
    bed.run("L1.router", inputs)
    wanted = x @ bed.matrix(bed.kernel.model.layers[EXPERTS].router)[0].float().T
    close(bed.floats("router", EXPERTS, bed.n_rows, bed.config.n_experts), wanted, bed.tolerance)


@case(*ORDERS)
def lm_head(bed: Bed) -> None:
    inputs, x = bed.normed(bed.config.n_layers)
    logits = bed.run("final.lm_head", inputs)
    wanted = x @ bed.matrix(bed.kernel.model.head)[0].float().T * bed.config.logit_scale
    close(logits, wanted, bed.tolerance)


# ------------------------------------------------------------------------------------------------ attention
@case(*ORDERS)
def attention(bed: Bed) -> None:
    """ATTN_DECODE, or ATTN_DRAIN where the order claims full attention."""
    for layer in (DENSE, EXPERTS):
        _attention(bed, layer)


def _attention(bed: Bed, layer: int) -> None:
    config, dims, groups = bed.config, bed.config.head_dim, bed.config.n_kv_heads
    heads, n_splits = config.n_heads // groups, bed.kernel.schedules[bed.n_rows - 1].n_splits
    rows = bed.rows()
    q = (bed.normal(bed.n_rows, groups, heads, dims) * 2 / dims**0.5).bfloat16()
    kept = [_fill_pages(bed, layer, row) for row in rows]
    bed.run(f"L{layer}.attn", {"q": (layer, pairs(q))}, rows)
    blocks, stride = bed.n_rows * groups * n_splits, dims + 4  # payloads of a head: o, m, l, two unused
    found = bed.kernel.tagged("part", blocks * 8 * stride).reshape(-1, 8, stride, 2)[:, :heads, : dims + 2]
    assert (found[..., 1] == bed.kernel.n_steps * 256 + layer).all(), "part: unset"
    values = np.ascontiguousarray(found[..., 0]).view(np.float32)
    ours = torch.from_numpy(values).view(bed.n_rows, groups, n_splits, heads, dims + 2).to(bed.kernel.device)
    wanted = [_parts(bed, layer, row, n_splits, q[r].float(), *kept[r]) for r, row in enumerate(rows)]
    o, m, total = (torch.stack(parts) for parts in zip(*wanted, strict=True))  # (R, G, S, N, C), (R, G, S, N) twice
    empty = total == 0
    assert torch.equal(ours[..., -1] == 0, empty), "other splits are empty"
    assert torch.equal(ours[..., -2].isneginf(), empty)
    split_close(ours[..., :-2], o, 8e-3)
    split_close(ours[..., -2].masked_fill(empty, 0.0), m.masked_fill(empty, 0.0), 1e-4)
    split_close(ours[..., -1], total, 1e-3)
    release(rows)


def split_close(ours: torch.Tensor, wanted: torch.Tensor, relative: float) -> None:
    """`close` for each split of each row: (R, G, S, …)."""
    distance, norm = (x.unsqueeze(-1).flatten(3).pow(2).sum((1, 3)).sqrt() for x in (ours - wanted, wanted))
    assert bool((distance <= relative * norm).all()), f"relative distances {(distance / norm).tolist()}"


def _parts(
    bed: Bed, layer: int, row: Row, n_splits: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """o (G, S, N, C), m and l (G, S, N) of queries (G, N, C) over the splits of keys and values (T, G, C)."""
    config = bed.config
    first = max(0, row.position - config.window + 1) if config.layers[layer].sliding else 0
    first_page = first // PAGE_TOKENS
    n_pages = row.position // PAGE_TOKENS - first_page + 1
    ends = [(first_page + n_pages * (s + 1) // n_splits) * PAGE_TOKENS for s in range(n_splits)]
    keys = torch.arange(first, row.position, device=q.device)
    split = torch.searchsorted(torch.tensor(ends, device=q.device), keys, right=True)
    member = torch.nn.functional.one_hot(split, n_splits).T.bool()  # (S, keys)
    scores = torch.einsum("gnc,tgc->gnt", q, k[first : row.position].float())
    each = scores[:, None].masked_fill(~member[None, :, None], -torch.inf)  # (G, S, N, keys)
    top = each.amax(-1) if len(keys) else each.new_full(each.shape[:-1], -torch.inf)
    weights = torch.exp2(each - top[..., None].nan_to_num(neginf=0.0))
    return torch.einsum("gsnt,tgc->gsnc", weights, v[first : row.position].float()), top, weights.sum(-1)


def _fill_pages(bed: Bed, layer: int, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values (S, G, C) of the earlier tokens in the window; NaN in every other place of the pages."""
    config, kv = bed.config, bed.kernel.kv
    first = max(0, row.position - config.window + 1) if config.layers[layer].sliding else 0
    pages = torch.tensor(row.pages.tables[kv.group_of(layer)], device=bed.kernel.device)
    shape = (config.n_kv_heads, config.head_dim)
    made: list[torch.Tensor] = []
    for pool, is_value in zip(kv.layer(layer), (False, True), strict=True):
        values = torch.full((pages_for(row.position + 1) * PAGE_TOKENS, *shape), float("nan"), device=bed.kernel.device)
        values[first : row.position] = bed.normal(row.position - first, *shape)
        made.append(values.bfloat16())
        FRAGMENT_PAGES.store(pool, pages, made[-1].unflatten(0, (-1, PAGE_TOKENS)), is_value=is_value)
    return made[0], made[1]


@case(*ORDERS)
def attn_combine(bed: Bed) -> None:
    config, dims, groups, n = bed.config, bed.config.head_dim, bed.config.n_kv_heads, bed.n_rows
    heads, n_splits = config.n_heads // groups, bed.kernel.schedules[n - 1].n_splits
    q, k, v = bed.normal(n, groups, heads, dims).bfloat16(), bed.normal(n, groups, dims), bed.normal(n, groups, dims)
    o, m, sums = (bed.normal(n, groups, n_splits, heads, c) for c in (dims, 1, 1))
    m, sums = m * 3, sums.abs() + 1
    empty = (bed.normal(n, groups, n_splits, 1, 1) > 0.5).expand_as(m)
    o, m, sums = o.masked_fill(empty, 0.0), m.masked_fill(empty, -torch.inf), sums.masked_fill(empty, 0.0)
    part = torch.zeros(n, groups, n_splits, 8, dims + 4, device=o.device)
    part[:, :, :, :heads, : dims + 2] = torch.cat([o, m, sums], dim=-1)
    words: Inputs = {"q": (EXPERTS, pairs(q)), "part": (EXPERTS, floats(part))}
    words |= {"k_new": (EXPERTS, floats(k)), "v_new": (EXPERTS, floats(v))}
    bed.run("L1.combine", words)
    now = torch.einsum("rgnc,rgc->rgn", q.float(), k)[..., None]  # of the current token, whose K and V come beside
    top = torch.maximum(m.amax(2), now)
    scales, last = torch.exp2(m - top[:, :, None]), torch.exp2(now - top)
    total = (scales * sums).sum(2) + last
    wanted = ((scales * o).sum(2) + last * v[:, :, None]) / total
    close(bed.bf16("attn", EXPERTS, n, groups, heads, dims), wanted, 4e-3)


# ------------------------------------------------------------------------------------------------ experts
@dataclass(frozen=True, slots=True)
class Routed:
    """Experts and their weights, (R, T) each, slots in the order's own sequence, and the pairs grouped by expert."""

    inputs: Inputs
    ids: torch.Tensor
    scores: torch.Tensor

    @property
    def experts(self) -> list[int]:
        """Of every pair row * T + slot."""
        return self.ids.flatten().tolist()

    def grouped(self) -> list[int]:
        """Pairs in the order in which the experts' rows lie."""
        experts = self.experts
        return sorted(range(len(experts)), key=lambda pair: (experts[pair], pair))


def _routed(bed: Bed) -> Routed:
    """Lean: from router logits, slots by falling logit. Published orders: a route as ROUTE_FINALIZE makes it."""
    config = bed.config
    if bed.kernel.lean:
        logits = bed.normal(bed.n_rows, config.n_experts)
        ids = logits.sort(dim=1, descending=True, stable=True).indices[:, : config.top_k].contiguous()
        scores = _expert_weights(bed, logits, ids)
        return Routed({"router": (EXPERTS, floats(logits))}, ids, scores)
    chosen = [torch.randperm(config.n_experts, generator=bed.dice)[: config.top_k] for _ in range(bed.n_rows)]
    ids = torch.stack(chosen).sort(dim=1).values.to(bed.kernel.device)
    scores = torch.rand(bed.n_rows, config.top_k, generator=bed.dice).to(bed.kernel.device) + 0.1
    both = np.stack([ids.cpu().numpy().reshape(-1).astype(np.uint32), floats(scores)], axis=1).reshape(-1)
    bed.run("L1.finalize", {"topk": (EXPERTS, both)})
    return Routed({"route": (EXPERTS, bed.kernel.results("route", ROUTE_WORDS, EXPERTS))}, ids, scores)


def _expert_weights(bed: Bed, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    weights = logits.sigmoid().gather(1, ids)
    return weights / weights.sum(dim=1, keepdim=True) if bed.config.norm_topk else weights


@case("shipped")
def router_topk(bed: Bed) -> None:
    config = bed.config
    logits = bed.normal(bed.n_rows, config.n_experts)
    logits[-1] = 0.5  # all equal: ties go to the lower id
    logits[0, [1, 6]] = 9.0
    bed.run("L1.topk", {"router": (EXPERTS, floats(logits))})
    found = bed.kernel.results("topk", bed.n_rows * config.top_k * 2, EXPERTS).reshape(bed.n_rows, config.top_k, 2)
    ids = logits.sort(dim=1, descending=True, stable=True).indices[:, : config.top_k].sort(dim=1).values
    assert found[:, :, 0].tolist() == ids.tolist()
    weights = torch.from_numpy(np.ascontiguousarray(found[:, :, 1]).view(np.float32)).to(ids.device)
    assert torch.allclose(weights, _expert_weights(bed, logits, ids), rtol=1e-4)


@case("shipped")
def route_finalize(bed: Bed) -> None:
    routed = _routed(bed)
    ids, route = routed.ids.cpu(), routed.inputs["route"][1]
    union, raw = sorted(set(ids.view(-1).tolist())), route.view(np.uint8)
    assert int(route[0]) == len(union)
    entries = raw[4 : 4 + 4 * len(union)].reshape(-1, 4)
    assert (entries[:, 0].astype(int) + entries[:, 1].astype(int) * 256).tolist() == union
    assert entries[:, 2].tolist() == [sum(1 << r for r in range(bed.n_rows) if e in ids[r]) for e in union]
    assert raw[260 : 260 + ids.numel()].tolist() == routed.grouped()
    assert route[81 : 81 + ids.numel()].tolist() == floats(routed.scores).tolist()


@case("shipped")
def moe_gather(bed: Bed) -> None:
    config, routed = bed.config, _routed(bed)
    normed = bed.normal(bed.n_rows, config.hidden).bfloat16()
    bed.run("L1.gather", routed.inputs | {"normed": (EXPERTS, pairs(normed))})
    rows = [pair // config.top_k for pair in routed.grouped()]
    assert torch.equal(bed.bf16("moe_in", EXPERTS, len(rows), config.hidden), normed[rows].float())


@case(*ORDERS)
def moe_upgate_act_drain(bed: Bed) -> None:
    """Every tile of every chosen expert once, whether claimed or dealt out in slices."""
    config, routed, width = bed.config, _routed(bed), bed.config.layers[EXPERTS].intermediate
    order = routed.grouped()
    if bed.kernel.lean:
        inputs, x = bed.normed(EXPERTS)
        x = x[[pair // config.top_k for pair in order]]
    else:
        moe_in = bed.normal(len(order), config.hidden).bfloat16()
        inputs, x = {"moe_in": (EXPERTS, pairs(moe_in))}, moe_in.float()
    bed.run("L1.upgate", routed.inputs | inputs)
    bank = bed.matrix(bed.kernel.model.layers[EXPERTS].upgate)
    scores = routed.scores.view(-1)
    wanted, experts = torch.empty(len(order), width, device=x.device), routed.experts
    for i, pair in enumerate(order):
        wanted[pair] = _hidden_units(bank[experts[pair]], x[i]) * scores[pair]
    close(bed.bf16("ffn", EXPERTS, len(order), width), wanted, 6e-3)


def _down(bed: Bed, routed: Routed, hidden: torch.Tensor) -> torch.Tensor:
    """(R, T, D) of hidden units (R T, F)."""
    bank = bed.matrix(bed.kernel.model.layers[EXPERTS].down)
    products = [bank[expert].float() @ hidden[pair].float() for pair, expert in enumerate(routed.experts)]
    return torch.stack(products).view(bed.n_rows, -1, bed.config.hidden)


@case("shipped")
def moe_down_drain(bed: Bed) -> None:
    config, routed = bed.config, _routed(bed)
    hidden = bed.normal(bed.n_rows * config.top_k, config.layers[EXPERTS].intermediate).bfloat16()
    bed.run("L1.down", routed.inputs | {"ffn": (EXPERTS, pairs(hidden))})
    found = bed.floats("moe_out", EXPERTS, bed.n_rows, config.top_k, config.hidden)
    close(found, _down(bed, routed, hidden), 1e-4)


@case("lean")
def o_proj_and_moe_down_drain_add_to_the_residual(bed: Bed) -> None:
    config, routed = bed.config, _routed(bed)
    attn = bed.normal(bed.n_rows, config.n_heads * config.head_dim).bfloat16()
    hidden = bed.normal(bed.n_rows * config.top_k, config.layers[EXPERTS].intermediate).bfloat16()
    inputs = {"attn": (EXPERTS, pairs(attn)), "ffn": (EXPERTS, pairs(hidden))}
    bed.run("L1.o L1.down", routed.inputs | inputs)
    wanted = _embedded(bed) + attn.float() @ bed.matrix(bed.kernel.model.layers[EXPERTS].o)[0].float().T
    wanted += _down(bed, routed, hidden).sum(1)
    close(bed.bf16("residual", EXPERTS + 1, bed.n_rows, config.hidden), wanted, 3e-3)


@case("shipped")
def moe_combine(bed: Bed) -> None:
    out = bed.normal(bed.n_rows, bed.config.top_k, bed.config.hidden)
    bed.run("L1.moe_combine", {"moe_out": (EXPERTS, floats(out))})
    close(bed.floats("ffn_out", EXPERTS, bed.n_rows, bed.config.hidden), out.sum(dim=1), 1e-6)
