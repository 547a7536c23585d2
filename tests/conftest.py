"""Settings of the whole suite."""

import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

# Modules that pytest rewrites (its plugins, hypothesis, the tests) are compiled once, not in every worker and run.
sys.dont_write_bytecode = False

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# The collector would look at each imported module and collected test many times: a quarter of the time before the first
# test, and a twentieth of what follows. It is on again when the first test runs.
gc.disable()

# One thread per library: the models are tiny, xdist's workers share the cores. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, so that a change is judged by what it does and not by luck. To look for new ones:
# HYPOTHESIS_PROFILE=explore (random, ten times as many where a test does not say how many; see also effort.py).
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one more than there are cores, because some tests wait: for a process, a time-out, the compiler."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker reads the files from another one on, so that each is rewritten and compiled once."""
    config = session.config
    told: Any = getattr(config, "workerinput", None)  # of a worker of pytest-xdist
    if told is not None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
        worker, workers = int(told["workerid"].removeprefix("gw")), told["workercount"]
        first = len(files) * worker // workers
        config.args = files[first:] + files[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one order, whatever was read first."""
    items.sort(key=lambda item: item.path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is there now stays to the end."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    # Before each part of a test pytest hands its handlers to every logger that does not pass records on: torch has 40.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
