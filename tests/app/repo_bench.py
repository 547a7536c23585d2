"""Measures a repository of 10,000 files: first prompt, map, `@` completion. `python -P -m tests.app.repo_bench [N]`.

A script, not a test: it prints seconds, median of three runs where it says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pointcode_local.complete import fuzzy_paths, list_files
from pointcode_local.tools.repo_map import MapStore
from tests.app.openai_server import Reply, ScriptedServer
from tests.app.program import Program

KEYS = "@modul", "@module_77", "@pkg42/sub", "@pk4m99", "@make", "@e.py"


def make_repository(root: Path, n_files: int) -> None:
    """Python modules of about 2.7 kB that use each other, some much more than others, in a git repository."""
    chance = random.Random(1)
    for number in range(n_files):
        path = root / f"pkg{number % 100:02d}" / f"sub{number // 100 % 10}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        used = [min(int(chance.paretovariate(0.7)), n_files - 1) for _ in range(6)]
        path.write_text("\n".join(_module(number, used)))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)


def _module(number: int, used: list[int]) -> list[str]:
    lines = [f"from pkg{u % 100:02d}.sub{u // 100 % 10}.module_{u} import make_thing_{u}, Thing{u}" for u in used]
    lines += ["", f"class Thing{number}:", f'    """What module {number} is about."""', ""]
    for at in range(8):
        lines += [
            f"    def method_{at}_{number}(self, left: int, right: str = 'x') -> list[str]:",
            "        values = [str(k) + right for k in range(left)]",
            f"        if not values: return [make_thing_{used[at % 6]}(left)]",
            "        return [value.strip() for value in values if value]",
            "",
        ]
    return [*lines, f"def make_thing_{number}(n: int) -> Thing{number}:", f"    return Thing{number}()", ""]


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def first_prompt(program: Program) -> float:
    """Seconds from the program's start until its first prompt is at the server."""
    reached_s: list[float] = []

    def answer(request: dict[str, object]) -> Reply:
        reached_s.append(time.perf_counter())
        return Reply("ok")

    with ScriptedServer([answer]) as server:
        start_s = time.perf_counter()
        program.run("-p", "Go.", "--endpoint", server.url, "--output-format", "json")
        text = json.dumps(server.requests[0]["messages"])
    print(f"    (with a map: {'yes' if 'repository map' in text else 'no'}; load {os.getloadavg()[0]:.1f})")
    return reached_s[0] - start_s


def first_map(store: MapStore) -> float:
    """Seconds until a map of a folder without one can be read; waits for the whole one after that."""
    start_s = time.perf_counter()
    thread = threading.Thread(target=lambda: asyncio.run(store.refresh()))
    thread.start()
    while (found := store.read()) is None:
        time.sleep(0.02)
    took_s = time.perf_counter() - start_s
    print(f"    (the first map is of {found.n_tagged:,} of {found.n_files:,} files)")
    thread.join()
    print(f"map, cold, whole:                 {time.perf_counter() - start_s:.2f} s")
    return took_s


def main() -> None:
    """Print the measurements."""
    n_files = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder))
        make_repository(program.ws, n_files)
        print(f"{n_files:,} files, {sum(p.stat().st_size for p in program.ws.rglob('*.py')) / 1e6:.1f} MB")
        empty = Path(folder) / "other"
        empty.mkdir()
        other = Program(empty)
        print(f"first prompt, empty folder:       {statistics.median(first_prompt(other) for _ in range(3)):.2f} s")
        cold = first_prompt(program)
        print(f"first prompt, nothing cached:     {cold:.2f} s")
        store = MapStore(program.ws, Path(folder) / "cache")
        print(f"map, cold, first one to read:     {first_map(store):.2f} s")
        warm = statistics.median(timed(lambda: asyncio.run(store.refresh())) for _ in range(3))
        print(f"map, nothing changed:             {warm:.2f} s")
        (program.ws / "pkg00" / "sub0" / "module_0.py").write_text("def changed(): pass\n")
        print(f"map, one file changed:            {timed(lambda: asyncio.run(store.refresh())):.2f} s")
        asyncio.run(MapStore(program.ws, program.state / "cache").refresh())  # the program's own
        warm_prompt = statistics.median(first_prompt(program) for _ in range(3))
        print(f"first prompt, map from before:    {warm_prompt:.2f} s")
        print(f"files for @, once in 10 s:        {timed(lambda: list_files(program.ws)):.3f} s")
        names = list_files(program.ws)
        worst = max(statistics.median(timed(lambda k=k: fuzzy_paths(k[1:], names)) for _ in range(5)) for k in KEYS)
        print(f"@ completion, slowest of {len(KEYS)} keys:  {worst * 1000:.1f} ms")


if __name__ == "__main__":
    main()
