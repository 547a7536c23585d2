"""Settings of the whole suite."""

import os

# One thread per library: the models are tiny, xdist's workers share the cores. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
