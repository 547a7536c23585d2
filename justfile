# Shortcuts; `.ci/run` is what must pass.

python := ".venv/bin/python"

# the environment with everything for development
setup:
    python3 -m venv .venv
    .venv/bin/pip install -q torch==2.13.0 -e '.[dev]'

test *args:
    {{python}} -P -m pytest -q -n auto {{args}}

# the same tests with far more repetitions; with the real models: POINTCODE_REAL_CALLS=200
explore *args:
    HYPOTHESIS_PROFILE=explore {{python}} -P -m pytest -q -n auto --timeout 3600 {{args}}

# tests that run real models (fetched on first use)
test-real:
    {{python}} -P -m pytest -q -m real_model

lint:
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/lint-imports
    .venv/bin/pyright --pythonpath {{python}}

format:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .
    git ls-files csrc | grep -E '\.(cc|h|cu|cuh)$' | xargs .venv/bin/clang-format -i

ci:
    .ci/run
