"""A helper process that gets bytes on stdin and answers on stdout within a time: hooks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

MAX_BYTES = 1 << 20  # of an answer; what comes after it is dropped


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process said. `code` None: it took too long and was ended; negative: the signal that ended it."""

    code: int | None
    output: bytes
    errors: bytes


async def ask(
    command: Sequence[str], given: bytes, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> Answer:
    """Run a command to its end; it and its process group are ended after `timeout_s` and on cancel.

    Its three streams are files without a name: neither input that it does not read nor a child that it leaves behind
    can hold us up. Raises OSError when it cannot be started.
    """
    with TemporaryFile() as input_, TemporaryFile() as output, TemporaryFile() as errors:
        input_.write(given)
        input_.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env=dict(environment),
            stdin=input_,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            code = None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
        return Answer(code, _begin(output), _begin(errors))


def _begin(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_BYTES)
