"""Reads a build log with ptxas's `-v` lines: every kernel keeps everything in registers. Usage: … LOG"""

import re
import sys
from pathlib import Path

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")


def main(log: Path) -> int:
    """Prints one line per kernel; returns 1 when one of them spills or none was compiled."""
    kernel, frame, n_kernels, bad = "", (0, 0, 0), 0, 0
    for line in log.read_text(errors="replace").splitlines():
        if found := _KERNEL.search(line):
            kernel = f"{found[2]} {found[1]}"
        elif found := _FRAME.search(line):
            frame = (int(found[1]), int(found[2]), int(found[3]))
        elif (found := _REGISTERS.search(line)) and kernel:
            n_kernels += 1
            bad += any(frame)
            print(f"{kernel}: {found[1]} registers, stack {frame[0]}, spill stores {frame[1]}, spill loads {frame[2]}")
            kernel, frame = "", (0, 0, 0)
    if not n_kernels:
        print("no kernel was compiled although nvcc is on PATH", file=sys.stderr)
    if bad:
        print(f"{bad} kernels spill registers or use a stack frame", file=sys.stderr)
    return 1 if bad or not n_kernels else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
