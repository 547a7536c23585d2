"""How the full screen keeps up: a fast stream while somebody types, and a long session.

python -P -m tests.bench.tui_load [--tokens 20000] [--rate 1000] [--messages 5000] [--json]

The app runs in a process of its own on a pseudo-terminal; this process is the terminal and the typist.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import inspect
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from pointcode_local.events import AgentEvent, AssistantMessage, TextDelta, TurnFinished, TurnStarted
from pointcode_local.tui import app_class
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost

PointcodeApp = app_class()

COLUMNS, LINES = 120, 40
TYPED = "абвгдежзийклмнопрстуфхцчшщъыьэюя"  # letters that the stream does not contain
KEY_EVERY_S = 0.25
TICK_S = 0.004  # how often the stream hands over what is due, as an eventfd would wake the loop
_PARAGRAPH = "The parser reads one **line** at a time, keeps `state` between lines, and stops at the first error. "
_SECTION = f"""## Step

{_PARAGRAPH * 4}

- first the `reader`, which knows nothing of the format
- then the *parser*, with a list of rules
  - and their order

```python
def parse(lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield Record(number, *line.split("\\t"))
```

| rule | when | what |
|---|---|---|
| head | first line | names |
| body | the rest | values |

"""


class FastAgent(ScriptedAgent):
    """Streams `n_tokens` tokens of four characters at `rate` a second, however busy the screen is."""

    def __init__(self, n_tokens: int, rate: float) -> None:
        super().__init__()
        self._n_tokens = n_tokens
        self._rate = rate
        self.begun_s = self.ended_s = self.cpu_s = 0.0

    async def run(self, prompt: str) -> AsyncIterator[AgentEvent]:
        """One turn."""
        text = (_SECTION * (4 * self._n_tokens // len(_SECTION) + 1))[: 4 * self._n_tokens]
        yield TurnStarted(prompt)
        self.begun_s, cpu_s = time.perf_counter(), time.thread_time()
        n_sent = 0
        while n_sent < self._n_tokens:
            due = min(self._n_tokens, int((time.perf_counter() - self.begun_s) * self._rate))
            for n in range(n_sent, due):
                yield TextDelta(text[4 * n : 4 * n + 4])
            n_sent = due
            await asyncio.sleep(TICK_S)
        self.ended_s, self.cpu_s = time.perf_counter(), time.thread_time() - cpu_s
        yield AssistantMessage(text, "", ())
        yield TurnFinished("done", text, 1)


STYLES = Path(inspect.getfile(PointcodeApp)).with_name(str(PointcodeApp.CSS_PATH))


class StreamApp(PointcodeApp):
    """Plays one fast turn, writes what it measured, and leaves."""

    CSS_PATH = STYLES

    def __init__(self, agent: FastAgent, report: Path) -> None:
        super().__init__(ScriptedHost(agent), prompt="go", theme="dark")
        self._fast = agent
        self._report = report
        self._frames_ms: list[float] = []  # CPU time of each, which other work on the machine does not lengthen

    async def on_mount(self) -> None:
        """Watch for the end. (Textual also calls the base class's handler.)"""
        self.run_worker(self._watch())

    async def _draw(self, batch: list[AgentEvent]) -> None:
        begun_s = time.thread_time()
        await super()._draw(batch)
        self._frames_ms.append((time.thread_time() - begun_s) * 1e3)

    async def _watch(self) -> None:
        while not self._fast.ended_s or self.is_busy or not self.is_settled:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        seconds = self._fast.ended_s - self._fast.begun_s
        figures = {
            "seconds": seconds,
            "ui_cpu_share": self._fast.cpu_s / seconds,
            "frames": len(self._frames_ms),
            "frame_cpu_ms_p95": quantile(self._frames_ms, 0.95),
            "backlog_ms": (time.perf_counter() - self._fast.ended_s) * 1e3,
        }
        self._report.write_text(json.dumps(figures))
        self.exit(0)


class SessionApp(PointcodeApp):
    """Opens a long session, pages back through it, writes what it measured, and leaves."""

    CSS_PATH = STYLES

    def __init__(self, n_messages: int, report: Path) -> None:
        events: list[AgentEvent] = []
        for n in range(n_messages // 2):
            text = f"Answer {n}\n\n{_SECTION if n % 10 == 0 else _PARAGRAPH}"
            events += [TurnStarted(f"Question {n}?"), AssistantMessage(text, "", ()), TurnFinished("done", text, 1)]
        self._made_s = time.perf_counter()
        super().__init__(ScriptedHost(ScriptedAgent(), events=events), theme="dark")
        self._report = report

    async def on_mount(self) -> None:
        """Watch for the end."""
        self.run_worker(self._watch())

    async def _drawn(self) -> None:
        done = asyncio.Event()
        self.call_after_refresh(done.set)
        await done.wait()

    async def _watch(self) -> None:
        while self.agent is None or not self.story.records:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self._drawn()
        opened_s = time.perf_counter() - self._made_s
        pages: list[float] = []
        for _ in range(40):
            begun = time.perf_counter()
            self.action_page(-1)
            await self._drawn()
            pages.append((time.perf_counter() - begun) * 1e3)
        self._report.write_text(json.dumps({"open_s": opened_s, "page_up_ms_p95": quantile(pages, 0.95)}))
        self.exit(0)


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that the share `q` of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


# ------------------------------------------------------------------------------------------------ the terminal
class Terminal:
    """A pseudo-terminal with a process; reads all the time and knows when each byte came."""

    def __init__(self, command: Sequence[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._seen = bytearray()
        self._ended = False
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            with self._news:
                self._seen += data
                self._ended = not data
                self._news.notify_all()
            if not data:
                return

    def type_and_time(self, character: str, limit_s: float = 5.0) -> float | None:
        """Seconds from the key to the first byte sequence that shows it; None when it did not come."""
        with self._news:
            self._seen.clear()
            begun = time.perf_counter()
            with contextlib.suppress(OSError):  # it has ended
                os.write(self.master, character.encode())
            self._news.wait_for(lambda: character.encode() in self._seen or self._ended, limit_s)
            return time.perf_counter() - begun if character.encode() in self._seen else None

    def wait_for(self, text: bytes) -> None:
        """Until this was shown, or the process is gone."""
        with self._news:
            self._news.wait_for(lambda: text in self._seen or self._ended)


def measure_stream(n_tokens: int, rate: float, report: Path) -> dict[str, float]:
    """Types while the stream runs; figures in the units of their names."""
    command = [sys.executable, "-P", "-m", "tests.bench.tui_load", "--child", "stream"]
    terminal = Terminal([*command, "--tokens", str(n_tokens), "--rate", str(rate), "--report", str(report)])
    echoes: list[float] = []
    terminal.wait_for(b"Step")
    n = 0
    while terminal.process.poll() is None:
        took_s = terminal.type_and_time(TYPED[n % len(TYPED)])
        if took_s is not None:
            echoes.append(took_s * 1e3)
        n += 1
        time.sleep(KEY_EVERY_S)
    figures = json.loads(report.read_text())
    return {
        **figures,
        "keys": len(echoes),
        "echo_ms_p50": statistics.median(echoes),
        "echo_ms_p95": quantile(echoes, 0.95),
        "echo_ms_most": max(echoes),
    }


def measure_session(n_messages: int, report: Path) -> dict[str, float]:
    """Opening and paging."""
    command = [sys.executable, "-P", "-m", "tests.bench.tui_load", "--child", "session"]
    terminal = Terminal([*command, "--messages", str(n_messages), "--report", str(report)])
    terminal.process.wait(120)
    return json.loads(report.read_text())


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="tui_load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--only", choices=["stream", "session"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=["stream", "session"], help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, default=Path(f"/tmp/tui-load-{os.getpid()}.json"), help="scratch file")
    options = parser.parse_args()
    if options.child == "stream":
        return StreamApp(FastAgent(options.tokens, options.rate), options.report).run() or 0
    if options.child == "session":
        return SessionApp(options.messages, options.report).run() or 0
    results: dict[str, dict[str, float]] = {}
    if options.only != "session":
        results["stream"] = measure_stream(options.tokens, options.rate, options.report)
    if options.only != "stream":
        results["session"] = measure_session(options.messages, options.report)
    options.report.unlink(missing_ok=True)
    for name, figures in results.items():
        text = "  ".join(f"{key} {value:.3g}" for key, value in figures.items())
        print(json.dumps({name: figures}) if options.json else f"{name}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
