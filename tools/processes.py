"""A command with everything it starts: own session, output through one pipe, ended as a whole.

The command counts as finished when its shell has exited, even while a child it left behind holds the pipe; such a
child is drained (so that it does not block or die on a full pipe) until it ends or `reaper.end_all` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .reaper import Reaper
from .reaper_exec import MARK, family, marked, started

READ_BYTES = 65536
LAST_OUTPUT_S = 0.2  # how long output may still come after the shell has exited
TERM_GRACE_S = 0.4  # between SIGTERM and SIGKILL


class Process:
    """One running command. Made by `start`; `on_data` gets raw output on the event loop."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        reader: int,
        mark: str,
        reaper: Reaper,
        on_data: Callable[[bytes], None],
    ) -> None:
        self._popen = popen
        self._reader = reader
        self._mark = mark
        self._reaper = reaper
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._ended: asyncio.Event = asyncio.Event()  # the pipe is at its end
        self._heard = asyncio.Event()
        self._family: dict[int, int] = {}  # descendants that were seen, and when each was started
        os.set_blocking(reader, False)
        self._loop.add_reader(reader, self._read)
        threading.Thread(target=self._wait, name=f"wait-{popen.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The shell's process id, which is also its group's."""
        return self._popen.pid

    def _wait(self) -> None:
        code = self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._exit, code)

    def _exit(self, code: int) -> None:
        self._reaper.remove(self.pid)
        if not self.exited.done():
            self.exited.set_result(code)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard.set()
            self._on_data(data)
        else:
            self._close_pipe()

    def _close_pipe(self) -> None:
        if not self._ended.is_set():
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._ended.set()

    async def wait(self, timeout_s: float | None) -> int | None:
        """The exit code (negative: the signal) once the shell has exited and its output has come; None after
        `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                code = await asyncio.shield(self.exited)
        except TimeoutError:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_S):
                await self._ended.wait()
        return code

    async def kill(self) -> None:
        """End the whole group and whatever else carries our mark: politely, then at once."""
        for number, grace_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, 0.2)):
            if not self._send(number):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._ended.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(self.exited)
        self._close_pipe()

    def kill_now(self) -> None:
        """End the group and the family without waiting (at exit); what has left both is found by the mark of all."""
        self._find_family()
        self._send_group(signal.SIGKILL)
        self._send_family(signal.SIGKILL)
        self._close_pipe()

    def _send(self, number: signal.Signals) -> bool:
        """Signal the group, the family and the marked; was there anything to signal?"""
        self._find_family()
        found = self._send_group(number)
        found = self._send_family(number) or found
        for pid in marked(f"{self._mark}\0"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                found = True
        return found

    def _find_family(self) -> None:
        """Look before anything ends: who loses its parent cannot be found by it any more."""
        known = [pid for pid, since in self._family.items() if started(pid) == since]
        self._family |= family(known if self.exited.done() else [self.pid, *known])

    def _send_family(self, number: signal.Signals) -> bool:
        found = False
        for pid, since in self._family.items():
            if started(pid) == since:  # and not somebody else by now
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    found = True
        return found

    def _send_group(self, number: signal.Signals) -> bool:
        if self.exited.done() and _is_taken(self.pid):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            return True
        return False


def start(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    number: int,
    reaper: Reaper,
    on_data: Callable[[bytes], None],
) -> Process:
    """Start a command in its own session without a terminal; raises OSError when it cannot be started. `number` tells
    it from the others of this reaper."""
    mark = f"{reaper.mark}.{number}"
    reaper.start()
    reader, writer = os.pipe()
    try:
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    reaper.add(popen.pid)
    return Process(popen, reader, mark, reaper, on_data)


def _is_taken(pid: int) -> bool:
    """Is there a process of this number? A group whose leader has ended keeps its number from being used again, so
    one that is there is somebody else's, and so is the group."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
