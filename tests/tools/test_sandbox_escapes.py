"""A confined command really tries to get out: each attempt works without the sandbox and fails within it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointcode_local.tools import sandbox
from pointcode_local.tools.environment import command_environment
from pointcode_local.tools.sandbox import (
    bubblewrap_path,
    default_policy,
    landlock_abi,
    makes_networks,
    sandbox_status,
    wrapped,
)

TRUNCATE_ABI = 3
SCOPES_ABI = 6  # signals and abstract sockets
pytestmark = pytest.mark.skipif(landlock_abi() < TRUNCATE_ABI, reason="no Landlock, or an early one, on this machine")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is no temporary one for the sandbox, with a workspace and something outside of it."""
    folder = Path("/var/tmp") / f"pointcode-escape-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "ws").mkdir(parents=True)
    (folder / "out").mkdir()
    (folder / "out" / "kept").write_text("kept")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(place: Path, source: str, *, confined: bool, network: bool = False) -> subprocess.CompletedProcess[str]:
    """A Python script in the workspace; `out` is the folder that is out of bounds."""
    script = f"import os, socket, ctypes, signal\nout = {str(place / 'out')!r}\n{source}"
    policy = default_policy(place / "ws", network=network) if confined else None
    return subprocess.run(
        wrapped([sys.executable, "-I", "-c", script], policy),
        cwd=place / "ws",
        env=command_environment(os.environ, place),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def state(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    "source",
    [
        "open(out + '/new', 'w').write('x')",
        "open(out + '/kept', 'a').write('x')",
        "os.truncate(out + '/kept', 0)",
        "os.unlink(out + '/kept')",
        "os.mkdir(out + '/folder')",
        "os.rename(out + '/kept', out + '/moved')",
        "os.rename(out + '/kept', 'taken')",
        "os.link(out + '/kept', 'hard'); open('hard', 'w').write('x')",
        "os.symlink(out + '/kept', 'soft'); open('soft', 'w').write('x')",
        "os.symlink(out, 'folder'); open('folder/new', 'w').write('x')",
        "os.symlink('../../out/kept', 'relative'); open('relative', 'w').write('x')",
        "open('x', 'w').write('x'); os.rename('x', out + '/x')",
        "open('x', 'w').write('x'); os.link('x', out + '/x')",
        "os.chdir(out); open('new', 'w').write('x')",
        "os.symlink('nowhere', out + '/link')",
        "os.mkfifo(out + '/pipe')",
        "socket.socket(socket.AF_UNIX).bind(out + '/socket')",
        "os.open('..', os.O_RDONLY); os.fchdir(3); open('out/new', 'w').write('x')",
        "open('/proc/self/root' + out + '/new', 'w').write('x')",
        "open(f'/proc/self/cwd/../out/new', 'w').write('x')",
        # exchange a folder for a link to the outside between the check and the use
        "os.mkdir('d'); os.rename('d', 'e'); os.symlink(out, 'd'); open('d/kept', 'w').write('x')",
        # a child process, in a session of its own
        "os.setsid() if os.fork() == 0 else os.wait(); open(out + '/new', 'w').write('x')",
        "os.system('echo x > ' + out + '/new'); raise SystemExit(not os.path.exists(out + '/new'))",
        # mount something over it
        "ctypes.CDLL(None).mount(b'tmpfs', out.encode(), b'tmpfs', 0, None) and exit(1)",
    ],
)
def test_nothing_outside_the_workspace_can_be_changed(place: Path, source: str) -> None:
    before = state(place / "out")
    done = run(place, source, confined=True)
    assert done.returncode != 0 and state(place / "out") == before, done.stderr


@pytest.mark.parametrize(
    "writer", ["open('d/kept', 'w').write('x')", "os.rename('x', 'd/kept')", "os.unlink('d/kept')"]
)
def test_a_folder_that_is_swapped_for_a_link_while_it_is_written_to_leads_nowhere(place: Path, writer: str) -> None:
    """A second process exchanges the folder `d` and a link to the outside, in one step, again and again."""
    source = (
        "os.mkdir('d'); os.symlink(out, 'link')\n"
        "swap = lambda: ctypes.CDLL(None).renameat2(-100, b'd', -100, b'link', 2)\n"
        "pid = os.fork()\n"
        "while pid == 0: swap()\n"
        "for _ in range(400):\n"
        "    open('x', 'w').write('x')\n"
        f"    try: {writer}\n"
        "    except OSError: pass\n"
        "os.kill(pid, 9); os.waitpid(pid, 0)\n"
        "if not os.path.islink('d'): swap()\n"
        f"try: {writer}\n"
        "except OSError: print('refused at the end')"
    )
    before = state(place / "out")
    done = run(place, source, confined=True)
    assert (done.returncode, done.stdout) == (0, "refused at the end\n"), done.stderr
    assert state(place / "out") == before


def test_the_same_attempts_work_without_the_sandbox(place: Path) -> None:
    assert run(place, "open(out + '/new', 'w').write('x'); os.unlink(out + '/kept')", confined=False).returncode == 0
    assert list(state(place / "out")) == ["new"]


def test_the_workspace_and_temporary_folders_can_be_changed(place: Path) -> None:
    source = (
        "import tempfile\nos.makedirs('a/b'); open('a/b/f', 'w').write('x'); os.rename('a/b/f', 'g')\n"
        "os.link('g', 'h')\n"
        "os.symlink('g', 's'); os.chmod('g', 0o700); os.unlink('h')\n"
        "with tempfile.TemporaryDirectory() as folder: open(folder + '/t', 'w').write('x')\n"
        "open('/dev/null', 'w').write('x')\nopen(out + '/kept').read()"
    )
    done = run(place, source, confined=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not sandbox_status().blocks_network, reason="this kernel cannot close the network")
def test_the_network_outside_cannot_be_reached_and_a_private_one_can(place: Path) -> None:
    with socket_server() as (port, accepted):
        connect = f"socket.create_connection(('127.0.0.1', {port}), 5).sendall(b'x')"
        assert run(place, connect, confined=True).returncode != 0 and not accepted()
        assert run(place, connect, confined=True, network=True).returncode == 0
        assert accepted()


@pytest.mark.skipif(not makes_networks(), reason="this kernel gives no network namespace")
@pytest.mark.parametrize(
    "source",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('2001:db8::1', 53))",
        "socket.create_connection(('192.0.2.1', 80), 5)",
        "exit(len(socket.if_nameindex()) == 1)",  # 0, an escape, where there is more than the loopback
        # take the network of a process outside
        "ns = os.open(f'/proc/{os.getppid()}/ns/net', os.O_RDONLY); ctypes.CDLL(None).setns(ns, 0) and exit(1)",
    ],
)
def test_no_kind_of_packet_leaves_the_private_network(place: Path, source: str) -> None:
    assert run(place, source, confined=True).returncode == 1


class socket_server:
    """A listening TCP socket; `accepted()` says whether somebody came."""

    def __enter__(self):
        import socket

        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0)
        return self.server.getsockname()[1], self.accepted

    def accepted(self) -> bool:
        try:
            self.server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self.server.close()


def victim() -> subprocess.Popen[bytes]:
    """A process of ours outside of the sandbox."""
    return subprocess.Popen([sys.executable, "-I", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


@pytest.mark.parametrize(
    "attempt",
    [
        "libc.ptrace(16, pid, 0, 0)",  # PTRACE_ATTACH
        "libc.ptrace(0x4206, pid, 0, 0)",  # PTRACE_SEIZE
        "(open(f'/proc/{pid}/mem', 'r+b'), 0)[1]",
    ],
)
def test_a_process_outside_cannot_be_traced_or_written_to(place: Path, attempt: str) -> None:
    process = victim()
    try:
        source = (
            f"libc = ctypes.CDLL(None, use_errno=True); pid = {process.pid}\n"
            f"try: done = {attempt}\nexcept OSError: done = -1\n"
            "raise SystemExit(0 if done == 0 else 9)"
        )
        assert run(place, source, confined=True).returncode == 9
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(landlock_abi() < SCOPES_ABI, reason="this kernel's Landlock does not scope signals")
def test_a_process_outside_cannot_be_signalled_and_ones_own_children_can(place: Path) -> None:
    process = victim()
    try:
        assert run(place, f"os.kill({process.pid}, signal.SIGKILL)", confined=True).returncode != 0
        assert process.poll() is None
        own = "pid = os.fork()\nif pid == 0: signal.pause()\nos.kill(pid, 9); os.waitpid(pid, 0)"
        assert run(place, own, confined=True).returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(landlock_abi() < SCOPES_ABI, reason="this kernel's Landlock does not scope abstract sockets")
def test_an_abstract_socket_outside_cannot_be_reached(place: Path) -> None:
    import socket

    name = f"\0pointcode-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect({name!r})"
        assert run(place, connect, confined=True).returncode != 0
        assert run(place, connect, confined=False).returncode == 0


def test_the_sandbox_cannot_be_left_by_a_program_that_sets_ids_or_by_a_second_sandbox(place: Path) -> None:
    status = "print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')][0].split()[1])"
    assert run(place, status, confined=True).stdout == "1\n"
    policy = default_policy(place)  # wider than the one around it
    inner = json.dumps(wrapped([sys.executable, "-I", "-c", f"open({str(place / 'out' / 'new')!r}, 'w')"], policy))
    assert run(place, f"import subprocess; raise SystemExit(subprocess.call({inner}))", confined=True).returncode != 0
    assert not (place / "out" / "new").exists()


@pytest.mark.skipif(bubblewrap_path() is None, reason="bubblewrap is not installed, or may make no namespaces")
@pytest.mark.parametrize(
    "source",
    [
        "open(out + '/new', 'w').write('x')",
        "os.unlink(out + '/kept')",
        "os.rename(out + '/kept', 'taken')",
        "os.link(out + '/kept', 'hard'); open('hard', 'w').write('x')",
        "os.symlink(out, 'folder'); open('folder/new', 'w').write('x')",
        "os.kill({outsider}, 0)",
        "socket.create_connection(('127.0.0.1', 1), 5) if len(os.listdir('/sys/class/net')) else exit(1)",
    ],
)
def test_bubblewrap_confines_like_landlock(place: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "sandbox_status", lambda: sandbox.SandboxStatus("bubblewrap", True, ""))
    before = state(place / "out")
    attempt = source.replace("{outsider}", str(os.getpid()))
    assert run(place, attempt, confined=True).returncode != 0 and state(place / "out") == before
    allowed = "open('made', 'w').write('x'); open('/dev/null', 'w'); print(open(out + '/kept').read())"
    done = run(place, allowed, confined=True)
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
