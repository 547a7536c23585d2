"""Settings of the whole suite."""

import os
import sys

# Modules that pytest rewrites (its plugins, hypothesis, the tests) are compiled once, not in every worker and run.
sys.dont_write_bytecode = False

from hypothesis import settings  # noqa: E402

# One thread per library: the models are tiny, xdist's workers share the cores. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, so that a change is judged by what it does and not by luck. To look for new ones:
# HYPOTHESIS_PROFILE=explore (random, ten times as many where a test does not say how many; see also effort.py).
settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
