"""Best of five starts of `POINTCODE --help`; slower than the limit is a warning, because machines differ."""

import subprocess
import sys
import time

LIMIT_S = 0.3


def main(program: str) -> None:
    """Prints the measured time."""
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    best = min(times)
    print(f"pointcode --help: {best:.3f} s" + (f"  WARNING: over {LIMIT_S} s" if best > LIMIT_S else ""))


if __name__ == "__main__":
    main(sys.argv[1])
