"""The paged cache's books, prefix reuse against a naive cache, and the round trip over disk."""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pointcode_local.engine.errors import CapacityError
from pointcode_local.engine.kv_cache import FULL, NO_PAGE, PAGE_TOKENS, SLIDING, KvCache, KvGeometry, SequencePages
from pointcode_local.engine.kv_store import KvStore
from pointcode_local.engine.prefix_cache import MIN_COPIED_TOKENS, PrefixCache

DENSE = KvGeometry(sliding_layers=(False, False), n_kv_heads=1, head_dim=2)
MIXED = KvGeometry(sliding_layers=(False, True), n_kv_heads=1, head_dim=2, window=100)


def ids_of(*parts: tuple[int, int]) -> list[int]:
    """Token ids: (value, count) runs."""
    return [value for value, count in parts for _ in range(count)]


def marks(ids: list[int], begin: int, end: int) -> torch.Tensor:
    """(end - begin, 1) what identifies the tokens from the start to each position."""
    return torch.tensor([[float(hash(tuple(ids[: at + 1])) % 1_000_003)] for at in range(begin, end)])


def compute(kv: KvCache, sequence: SequencePages, ids: list[int], begin: int, end: int) -> None:
    """Stands for prefill: writes the marks into each visible page."""
    for page in range(begin // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
        start = page * PAGE_TOKENS
        first, last = max(begin, start), min(end, start + PAGE_TOKENS)
        made = marks(ids, first, last)
        for group in kv.groups:
            physical = sequence.tables[group][page]
            if physical != NO_PAGE:
                kv.pools[group].k[:, physical, :, first - start : last - start] = made
                kv.pools[group].v[:, physical, :, first - start : last - start] = -made


def assert_content(kv: KvCache, sequence: SequencePages, ids: list[int], n_tokens: int) -> None:
    """Every page a query at `n_tokens` reads holds exactly this sequence's marks."""
    for group in kv.groups:
        first = kv.geometry.first_visible_page(n_tokens) if group == SLIDING else 0
        for page in range(first, -(-n_tokens // PAGE_TOKENS)):
            physical = sequence.tables[group][page]
            assert physical != NO_PAGE
            start = page * PAGE_TOKENS
            wanted = marks(ids, start, min(n_tokens, start + PAGE_TOKENS)).expand(-1, 2)
            assert torch.equal(kv.pools[group].k[0, physical, 0, : len(wanted)], wanted)
            assert torch.equal(kv.pools[group].v[0, physical, 0, : len(wanted)], -wanted)


def run(kv: KvCache, cache: PrefixCache, ids: list[int], chunk: int = 128) -> tuple[SequencePages, int]:
    """A whole prefill; returns the pages and how many tokens came from the cache."""
    sequence = cache.attach(ids)
    cached = sequence.n_valid
    assert_content(kv, sequence, ids, cached)
    done = cached
    while done < len(ids):
        end = min(len(ids), done + chunk)
        sequence.grow(end)
        compute(kv, sequence, ids, done, end)
        done = end
        cache.register(ids, sequence, done)
        sequence.slide(done)
    return sequence, cached


def finish(cache: PrefixCache, sequence: SequencePages, ids: list[int] | None = None) -> None:
    """Ends a sequence; with its ids, the tokens of the last page become known too."""
    if ids is not None:
        cache.register_rest(ids, sequence, len(ids))
    sequence.release()
    cache.check()


@pytest.mark.parametrize("geometry", [DENSE, MIXED])
def test_the_same_prompt_twice_leaves_one_token_to_compute(geometry: KvGeometry) -> None:
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv)
    ids = ids_of((1, 256))
    for expected in (0, 255, 255):
        sequence, cached = run(kv, cache, ids)
        assert cached == expected
        finish(cache, sequence)


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = KvCache(DENSE, 32, 0)
    cache = PrefixCache(kv)
    finish(cache, run(kv, cache, ids_of((1, 129)))[0])
    assert run(kv, cache, ids_of((1, 129)))[1] == 128
    assert run(kv, cache, ids_of((1, 128)))[1] == 127
    assert run(kv, cache, ids_of((1, 65)))[1] == 64
    assert cache.attach([1]).n_pages == 0


@pytest.mark.parametrize("geometry", [DENSE, MIXED])
def test_the_beginning_of_a_page_is_copied_when_it_then_differs(geometry: KvGeometry) -> None:
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv)
    first, _ = run(kv, cache, ids_of((1, 100), (2, 200)))
    second, cached = run(kv, cache, ids_of((1, 100), (3, 200)))  # run checks the content
    assert cached == 100
    assert_content(kv, first, ids_of((1, 100), (2, 200)), 300)
    few, cached = run(kv, cache, ids_of((1, 64 + MIN_COPIED_TOKENS - 1), (4, 100)))
    assert cached == 64
    for sequence in (first, second, few):
        finish(cache, sequence)


@pytest.mark.parametrize("geometry", [DENSE, MIXED])
def test_the_next_turn_finds_the_last_page_of_the_turn_before_it(geometry: KvGeometry, tmp_path: Path) -> None:
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv, b"m", KvStore(tmp_path / "m.kv", "m", 1 << 20))
    ids = ids_of((1, 200), (2, 30))
    finish(cache, run(kv, cache, ids)[0], ids)
    longer = [*ids, *ids_of((3, 10))]
    sequence, cached = run(kv, cache, longer)
    assert cached == 230
    finish(cache, sequence, longer)
    assert len(cache) == 4  # the shorter last page is of no more use
    cache.save()
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv, b"m", KvStore(tmp_path / "m.kv", "m", 1 << 20))
    sequence, cached = run(kv, cache, [*longer, *ids_of((4, 10))])
    assert cached == 240
    finish(cache, sequence)


def test_without_a_free_page_for_the_copy_whole_pages_are_still_reused() -> None:
    kv = KvCache(DENSE, 4, 0)
    cache = PrefixCache(kv)
    held, _ = run(kv, cache, ids_of((1, 256)))
    sequence = cache.attach(ids_of((1, 220), (2, 10)))
    assert sequence.n_valid == 192
    finish(cache, sequence)
    finish(cache, held)


def test_sliding_pages_of_two_prompts_do_not_mix() -> None:
    kv = KvCache(MIXED, 64, 12)
    cache = PrefixCache(kv)
    a, b = ids_of((1, 320), (2, 200)), ids_of((1, 320), (3, 200))
    for ids in (a, a, b, b, a, b):
        finish(cache, run(kv, cache, ids)[0])


def test_a_chunk_that_was_inserted_and_then_aborted_leaves_a_good_prefix() -> None:
    kv = KvCache(MIXED, 16, 16)
    cache = PrefixCache(kv)
    ids = ids_of((7, 400))
    sequence = cache.attach(ids)
    sequence.grow(256)
    compute(kv, sequence, ids, 0, 130)  # cancelled in the middle: only two pages are complete
    cache.register(ids, sequence, 130)
    finish(cache, sequence)
    sequence, cached = run(kv, cache, ids)
    assert cached == 128
    finish(cache, sequence)


def test_a_hit_on_an_evicted_sliding_window_falls_back_to_less() -> None:
    kv = KvCache(MIXED, 64, 6)
    cache = PrefixCache(kv)
    a = ids_of((1, 640))
    finish(cache, run(kv, cache, a, chunk=64)[0])
    finish(cache, run(kv, cache, ids_of((2, 640)), chunk=64)[0])
    sequence, cached = run(kv, cache, a, chunk=64)
    assert cached == 0
    finish(cache, sequence)


def test_pages_in_use_are_never_evicted_and_running_out_is_a_capacity_error() -> None:
    kv = KvCache(DENSE, 4, 0)
    cache = PrefixCache(kv)
    held, _ = run(kv, cache, ids_of((1, 192)))
    other = cache.attach(ids_of((2, 192)))
    with pytest.raises(CapacityError, match="4 KV pages"):
        other.grow(192)
    assert_content(kv, held, ids_of((1, 192)), 192)
    finish(cache, other)
    finish(cache, held)
    assert kv.pools[FULL].counts().cached == 3


def test_a_forgotten_sequence_is_not_reused() -> None:
    kv = KvCache(DENSE, 8, 0)
    cache = PrefixCache(kv)
    sequence, _ = run(kv, cache, ids_of((1, 192)))
    cache.forget(sequence)
    finish(cache, sequence)
    assert run(kv, cache, ids_of((1, 192)))[1] == 0


def copied_tokens(known: set[tuple[int, ...]], ids: list[int], begin: int) -> int:
    """What a naive cache finds in the page behind the `begin` shared tokens."""
    best = 0
    for other in known:
        if begin < len(other) <= begin + PAGE_TOKENS and other[:begin] == tuple(ids[:begin]):
            pairs = zip(other[begin:], ids[begin:-1], strict=False)
            best = max(
                best, next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(other), len(ids) - 1) - begin)
            )
    return best if best >= MIN_COPIED_TOKENS else 0


@pytest.mark.parametrize("geometry", [DENSE, MIXED])
@pytest.mark.parametrize("n_pages", [12, 200])
def test_random_operations_agree_with_a_naive_cache(geometry: KvGeometry, n_pages: int) -> None:
    dice = random.Random(n_pages)
    kv = KvCache(geometry, n_pages, n_pages)
    cache = PrefixCache(kv)
    naive: set[tuple[int, ...]] = set()  # every computed page-aligned prefix, and the whole of ended sequences
    live: list[tuple[SequencePages, list[int], int]] = []
    for _ in range(150):
        if live and dice.random() < 0.5:
            sequence, ids, done = live.pop(dice.randrange(len(live)))
            assert_content(kv, sequence, ids, done)
            with_rest = dice.random() < 0.5
            finish(cache, sequence, ids if with_rest else None)
            if with_rest and len(ids) % PAGE_TOKENS >= MIN_COPIED_TOKENS:
                naive.add(tuple(ids))
            if kv.pools[FULL].counts().used == 0 and dice.random() < 0.1:
                cache.clear()
                naive.clear()
            continue
        ids = ids_of(*((dice.randrange(3), dice.choice((10, 64, 100))) for _ in range(dice.randrange(1, 5))))
        try:
            sequence, cached = run(kv, cache, ids, chunk=dice.choice((64, 96)))
        except CapacityError:
            assert n_pages == 12
            for other, _, _ in live:
                other.release()
            live.clear()
            kv = KvCache(geometry, n_pages, n_pages)
            cache = PrefixCache(kv)
            naive.clear()
            continue
        usable = range(PAGE_TOKENS, len(ids), PAGE_TOKENS)
        longest = max((n for n in usable if tuple(ids[:n]) in naive), default=0)
        longest += copied_tokens(naive, ids, longest)
        assert cached <= longest
        if n_pages == 200:
            assert cached == longest
        naive.update(tuple(ids[:n]) for n in range(PAGE_TOKENS, len(ids) + 1, PAGE_TOKENS))
        live.append((sequence, ids, len(ids)))
        cache.check()


@pytest.mark.parametrize("geometry", [DENSE, MIXED])
def test_pages_survive_a_restart_on_disk(geometry: KvGeometry, tmp_path: Path) -> None:
    path = tmp_path / "model.kv"
    ids = ids_of((1, 300), (2, 100))
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv, b"m", KvStore(path, "m", 1 << 20))
    finish(cache, run(kv, cache, ids)[0])
    assert cache.save()
    assert not cache.save()
    kv = KvCache(geometry, 32, 32)
    cache = PrefixCache(kv, b"m", KvStore(path, "m", 1 << 20))
    sequence, cached = run(kv, cache, ids)  # checks the content
    assert cached == 384
    finish(cache, sequence)


def test_a_damaged_foreign_or_missing_file_is_not_used(tmp_path: Path) -> None:
    folder, ids = tmp_path / "model.kv", ids_of((1, 300))
    kv = KvCache(DENSE, 32, 0)
    cache = PrefixCache(kv, b"m", KvStore(folder, "m", 1 << 20))
    finish(cache, run(kv, cache, ids)[0])
    cache.save()
    files = sorted(folder.iterdir())
    assert len(files) == 4
    assert not list(KvStore(folder, "other", 1 << 20).pages())
    path = next(
        file for file in files if b'"parent": "%s"' % cache.attach(ids).keys[0].hex().encode() in file.read_bytes()
    )
    good = path.read_bytes()
    damaged = [
        good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :] for at in (4, 12, 60, len(good) // 2, len(good) - 1)
    ]
    for data in (*damaged, good[: len(good) // 2], good[:9], b"", None, files[0].read_bytes() + files[-1].read_bytes()):
        path.unlink() if data is None else path.write_bytes(data)
        kv = KvCache(DENSE, 32, 0)
        cache = PrefixCache(kv, b"m", KvStore(folder, "m", 1 << 20))
        sequence, cached = run(kv, cache, ids)  # checks the content
        assert cached == 64, "the first page is good, the second is not"
        finish(cache, sequence)
    cache.save()
    kv = KvCache(DENSE, 32, 0)
    assert run(kv, PrefixCache(kv, b"m", KvStore(folder, "m", 1 << 20)), ids)[1] == 256


def test_saving_writes_only_what_is_new_and_notes_what_was_used(tmp_path: Path) -> None:
    folder = tmp_path / "model.kv"
    folder.write_bytes(b"one file, as an earlier version had it")
    kv = KvCache(DENSE, 32, 0)
    cache = PrefixCache(kv, b"m", KvStore(folder, "m", 1 << 20))
    finish(cache, run(kv, cache, ids_of((1, 200)))[0])
    assert cache.save()
    before = {file.name: file.stat() for file in folder.iterdir()}
    cache = PrefixCache(KvCache(DENSE, 32, 0), b"m", KvStore(folder, "m", 1 << 20))
    ids = ids_of((1, 200), (2, 100))
    finish(cache, run(kv, cache, ids)[0], ids)
    assert cache.save()
    after = {file.name: file.stat() for file in folder.iterdir()}
    assert len(after) == len(before) + 2
    assert all(after[name].st_ino == before[name].st_ino for name in before)
    assert all(after[name].st_mtime_ns > before[name].st_mtime_ns for name in before)


def test_two_processes_share_a_folder_and_a_page_that_one_removed_is_computed_again(tmp_path: Path) -> None:
    folder, page_bytes = tmp_path / "model.kv", DENSE.page_bytes(FULL)
    kv = KvCache(DENSE, 64, 0)
    first = PrefixCache(kv, b"m", KvStore(folder, "m", 3 * page_bytes))
    finish(first, run(kv, first, ids_of((1, 200)))[0])
    first.save()
    late = PrefixCache(KvCache(DENSE, 64, 0), b"m", KvStore(folder, "m", 3 * page_bytes))
    finish(first, run(kv, first, ids_of((2, 200)))[0])
    first.save()
    sequence = late.attach(ids_of((1, 200)))
    assert sequence.n_registered == 0
    sequence.release()


def test_a_page_that_goes_while_the_folder_is_read_costs_no_other_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ids = tmp_path / "model.kv", ids_of((1, 300))
    kv = KvCache(DENSE, 32, 0)
    cache = PrefixCache(kv, b"m", KvStore(folder, "m", 1 << 20))
    finish(cache, run(kv, cache, ids)[0])
    cache.save()
    list_folder = os.scandir

    @contextmanager
    def changing(path: Path) -> Generator[list[os.DirEntry[str]]]:
        with list_folder(path) as entries:
            found = list(entries)
        Path(found[0].path).unlink()  # by another process
        yield found

    monkeypatch.setattr(os, "scandir", changing)
    assert len(list(KvStore(folder, "m", 1 << 20).pages())) == 3


def test_what_cannot_be_saved_is_told_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    kv = KvCache(DENSE, 32, 0)
    cache = PrefixCache(kv, b"m", KvStore(tmp_path / "file" / "model.kv", "m", 1 << 20))
    finish(cache, run(kv, cache, ids_of((1, 200)))[0])
    cache.save()
    assert "could not be kept" in caplog.text


def test_the_folder_keeps_within_its_size_limit_and_prefers_what_was_used_last(tmp_path: Path) -> None:
    path = tmp_path / "model.kv"
    kv = KvCache(DENSE, 64, 0)
    page_bytes = DENSE.page_bytes(FULL)
    store = KvStore(path, "m", 3 * page_bytes)
    cache = PrefixCache(kv, b"m", store)
    for value in (1, 2):
        finish(cache, run(kv, cache, ids_of((value, 200)))[0])
    cache.save()
    assert len(list(store.pages())) == len(list(path.iterdir())) == 3
    fresh = PrefixCache(KvCache(DENSE, 64, 0), b"m", store)
    assert fresh.attach(ids_of((2, 200))).n_registered == 3
    assert fresh.attach(ids_of((1, 200))).n_registered == 0


def test_a_budget_too_small_for_two_pages_is_refused_and_others_fit() -> None:
    with pytest.raises(CapacityError, match="too small"):
        DENSE.page_counts(100, 8, 512)
    for geometry in (DENSE, MIXED):
        full, sliding = geometry.page_counts(1 << 20, 8, 64)
        used = full * geometry.page_bytes(FULL) + sliding * geometry.page_bytes(SLIDING)
        assert (1 << 20) * 0.95 < used <= 1 << 20


def test_releasing_a_page_twice_is_noticed() -> None:
    kv = KvCache(DENSE, 4, 0)
    page = kv.take(FULL)
    kv.pools[FULL].release(page)
    with pytest.raises(AssertionError, match="released more often"):
        kv.pools[FULL].release(page)
    assert torch.equal(kv.pools[FULL].k, torch.zeros_like(kv.pools[FULL].k))
