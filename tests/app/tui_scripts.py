"""Scripts of events that several tests play."""

from __future__ import annotations

from pointcode_local.events import (
    AssistantMessage,
    FileDiff,
    PermissionAsked,
    PrefillChanged,
    ReasoningDelta,
    SessionInfo,
    TextDelta,
    TodoChanged,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    UsageChanged,
)
from pointcode_local.frontend import EngineRequest, EngineView, Finding, FirstLook, PagePool

OLD = '''import sys


def main(argv):
    city = argv[1]
    print(forecast(city))
    return 0


def forecast(city):
    """Tomorrow in `city`."""
    return fetch(city).tomorrow
'''
NEW = OLD.replace(
    "    city = argv[1]\n    print(forecast(city))\n",
    "    args = parser().parse_args(argv[1:])\n    print(forecast(args.city, verbose=args.verbose))\n",
).replace("def forecast(city):", "def forecast(city, verbose=False):")
DIFF = FileDiff("src/cli.py", OLD, NEW)

ANSWER = '''I'll add the flag in `src/cli.py`. Two places read the arguments:

1. `main` in **src/cli.py**
2. `forecast`, which prints

```python
def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="weather")
    p.add_argument("-v", "--verbose", action="store_true")
    return p
```

| option | meaning |
|---|---|
| `city` | where |
| `--verbose` | more words |

> A quote to end with.
'''
USAGE = UsageChanged(9000, 3900, 210, 0.31, 128.4, 9210, 32768)
PYTEST_OUTPUT = "....F\nFAILED tests/test_cli.py::test_verbose\n1 failed, 4 passed in 0.31s\nexit code 1"
TODO = TodoChanged(
    (("Read the argument code", "done"), ("Add the flag", "in_progress"), ("Run the tests", "pending")),
)
PERMISSION = PermissionAsked(
    "ask1",
    "shell",
    {"command": "python -m pytest -q tests && git push --force"},
    "shell python -m pytest -q tests && git push --force",
    "`git push` changes a remote",
    "shell(git push *)",
)


def answer(text: str, cut: int = 7) -> list[object]:
    """One streamed reply without calls."""
    deltas = [TextDelta(text[at : at + cut]) for at in range(0, len(text), cut)]
    return [*deltas, AssistantMessage(text, "", ())]


def call(name: str, arguments: dict[str, object], result: str, *, error: bool = False, **more: object) -> list[object]:
    """One permitted call from its start to its result."""
    call_id = f"{name}-{abs(hash(str(arguments))) % 10**6}"
    title = f"{name} {next(iter(arguments.values()), '')}"
    return [
        ToolStarted(call_id, name, arguments, title),
        ToolFinished(call_id, name, arguments, result, error, **more),  # type: ignore[arg-type]
    ]


def full_turn() -> list[object]:
    """A turn with everything in it: thinking, an answer, folded reads, a diff, a failing command, a plan."""
    return [
        PrefillChanged(4200, 9000, 3900),
        ReasoningDelta("The user wants a flag. I should look at where argv is parsed, "),
        ReasoningDelta("then change main."),
        *answer(ANSWER),
        USAGE,
        *call("read", {"path": "src/cli.py"}, "\n".join(f"{n}\tline" for n in range(40))),
        *call("grep", {"pattern": "argv"}, "src/cli.py:4: city = argv[1]"),
        ToolCallDelta("edit1", "edit", '{"path": "src/cli.py", "edits": ['),
        ToolStarted("edit1", "edit", {"path": "src/cli.py"}, "edit src/cli.py"),
        ToolFinished("edit1", "edit", {"path": "src/cli.py"}, "edited src/cli.py", False, (DIFF,)),
        TODO,
        ToolStarted("sh1", "shell", {"command": "pytest -q"}, "shell pytest -q"),
        ToolProgress("sh1", "....F\n"),
        ToolFinished("sh1", "shell", {"command": "pytest -q"}, PYTEST_OUTPUT, True),
    ]


ENGINE = EngineView(
    model="qwen2.5-coder-0.5b",
    backend="cpu",
    n_threads=2,
    max_rows=8,
    steps=1200,
    busy_s=46.0,
    prefill_tokens=9000,
    prefill_s=40.0,
    n_finished=7,
    requests=(
        EngineRequest(12, "writing", 3412, 3412, 3328, 120),
        EngineRequest(13, "reading", 4096, 1024, 0, 0),
    ),
    pools=(PagePool("all layers", 14, 310, 1024),),
    page_tokens=64,
    step_bytes=400_000_000,
    ceiling_bytes_per_s=13.4e9,
)
FIRST_LOOK = FirstLook(
    (
        Finding("GPU", "none that can be used; the model runs on the processor"),
        Finding("processor", "AMD Ryzen 7 PRO 4750U, 16 cores, avx2 fma f16c"),
        Finding("memory", "11.2 GB available"),
        Finding("model", "Qwen2.5-Coder 0.5B Instruct, Q4_K_M, not on this machine yet", good=False),
        Finding("sandbox", "Landlock ABI 6 (writes only in the workspace and temporary folders, no network)"),
    ),
    "qwen2.5-coder-0.5b, 491 MB, licence Apache-2.0",
)

SESSIONS = [
    SessionInfo("s9", "Add a --verbose flag to the command line, and run the tests.", "/", 999_960.0, 3),
    SessionInfo("s8", "Write the docs", "/", 990_000.0, 1),
    SessionInfo("s7", "Wetterbericht für Zürich 漢字", "/", 500_000.0, 2),
]
