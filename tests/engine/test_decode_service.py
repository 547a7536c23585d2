"""The decode thread by itself, over the real CPU backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pointcode_local.engine import _native
from pointcode_local.engine._native import DecodeService, Notice, RowEnd, SamplingConfig, TokenFlag
from pointcode_local.engine.assembly import cpu_backend, cpu_schedules, kv_geometry
from pointcode_local.engine.kv_cache import KvCache
from pointcode_local.engine.model_files import ModelFiles

from .desks import wait_for_step

NO_PAGES = np.zeros(0, np.int32)
Records = list[tuple[int, int, int, dict[int, float] | None]]


@pytest.fixture(scope="module")
def backend(files: ModelFiles) -> _native.CpuBackend:
    kv = KvCache(kv_geometry(files.config), 32, 0)
    return cpu_backend(files.weights, kv, cpu_schedules(files.config, 1))


@pytest.fixture
def service(backend: _native.CpuBackend) -> Iterator[DecodeService]:
    made = DecodeService(16)
    assert made.park(5.0)
    made.set_backend(backend)
    yield made
    made.close()


def add(service: DecodeService, request: int, max_tokens: int, pages: list[int], **options: np.ndarray) -> None:
    history = np.asarray([30 + request, 40], np.int32)
    pages_array = np.asarray(pages, np.int32)
    service.add_row(request, history, max_tokens, [], SamplingConfig(), pages_array, NO_PAGES, **options)


def drain_until_end(service: DecodeService, n_rows: int = 1) -> Records:
    records: Records = []
    while sum(flags != TokenFlag.VALID for _, _, flags, _ in records) < n_rows:
        records += service.drain()
    return records


def test_a_slow_reader_stops_the_service_and_loses_nothing(service: DecodeService) -> None:
    add(service, 1, 60, [0])
    service.resume()
    while service.steps == 0:
        pass
    assert service.wait_notices(0.05) == 0
    assert service.steps == 1  # the ring of 16 has no room for 8 more rows and their possible errors
    records = drain_until_end(service)
    assert len(records) == 60
    assert service.park(5.0)
    assert [token for _, token, _, _ in records] == service.remove_row(1)[2:]


def test_a_waiting_service_can_be_parked_and_the_batch_changed(service: DecodeService) -> None:
    add(service, 1, 500, [0, 1, 2, 3, 4, 5, 6, 7])
    service.resume()
    while not service.drain():
        wait_for_step(service)
    assert service.park(5.0)
    (row,) = service.rows()
    assert (row[0], row[1]) == (1, RowEnd.RUNNING)
    add(service, 2, 5, [8])
    service.resume()
    while 2 not in {request for request, *_ in service.drain()}:
        pass
    assert service.cancel(1)
    assert not service.cancel(77)


def test_changes_need_the_service_parked(service: DecodeService) -> None:
    add(service, 1, 1000, [0])
    service.resume()
    for change in (
        lambda: add(service, 2, 5, [1]),
        lambda: service.remove_row(1),
        lambda: service.set_pages(1, 0, NO_PAGES),
        lambda: service.set_backend(None),
        service.rows,
    ):
        with pytest.raises(RuntimeError, match="park it"):
            change()


def test_a_row_out_of_pages_waits_for_more_while_others_go_on(service: DecodeService) -> None:
    add(service, 1, 100, [0])
    add(service, 2, 140, [1, 2, 3])
    service.resume()
    records = drain_until_end(service)
    assert records[-1][0] == 2
    assert sum(request == 1 for request, *_ in records) == 63  # positions 1 to 63
    assert service.wait_notices(5.0) & Notice.PAGES
    assert service.park(5.0)
    assert {request: end for request, end, *_ in service.rows()} == {1: RowEnd.RUNNING, 2: RowEnd.LENGTH}
    service.set_pages(1, 0, np.asarray([0, 4], np.int32))
    service.resume()
    assert len(drain_until_end(service)) == 37


def test_a_masked_row_waits_for_its_answer_while_others_go_on(service: DecodeService) -> None:
    mask = np.zeros(10, np.uint32)
    mask[3] = 1 << 5
    add(service, 1, 3, [0], mask=mask)
    add(service, 2, 30, [1])
    service.resume()
    records = drain_until_end(service)
    assert [token for request, token, _, _ in records if request == 1] == [3 * 32 + 5]
    assert sum(request == 2 for request, *_ in records) == 30
    for n, word in ((1, 4), (2, 5)):
        assert service.wait_queries(5.0)[0][:2] == (1, n)
        mask = np.zeros(10, np.uint32)
        mask[word] = 1
        service.answer(1, n - 1, [mask])  # an answer for an earlier token does not count
        service.answer(1, n, [mask])
        while not (found := service.drain()):
            wait_for_step(service)
        assert found[0][1] == word * 32
    assert found[0][2] & TokenFlag.END_LENGTH


def test_no_more_than_eight_rows_fit(service: DecodeService) -> None:
    for request in range(1, 9):
        add(service, request, 5, [request])
    with pytest.raises(ValueError, match="all rows"):
        add(service, 9, 5, [9])
    service.resume()
    assert len(drain_until_end(service, 8)) == 40


def test_closing_in_the_middle_of_a_request_joins_the_thread(backend: _native.CpuBackend) -> None:
    service = DecodeService()
    assert service.park(5.0)
    service.set_backend(backend)
    add(service, 1, 4000, [0])
    service.resume()
    service.close()
    service.close()
    assert Path(f"/proc/self/fd/{service.event_fd}").exists()
