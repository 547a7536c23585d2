"""Applies Landlock to itself and becomes the given command. Run as a script by `sandbox.py`; standard library only.

argv: a JSON plan {"writable": [folder, …], "network": bool, "pinned": [folder, …], "read_only": [path, …],
"links": [[link, file], …]}, then the command. Exit 126 when confinement fails. Where mounts can be made, those that are
"pinned" cannot be renamed, those that are "read_only" not be changed, though they lie in writable folders, and in place
of a file its link is seen. With "probe": "network" or "mounts" it only tries to make them, and exits 0 when that works.
Structures and numbers are those of the kernel's include/uapi/linux/landlock.h.
"""

import ctypes
import fcntl
import json
import os
import socket
import stat
import struct
import sys
from typing import NoReturn

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PR_SET_NO_NEW_PRIVS = 38
RULE_PATH_BENEATH = 1
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
AT_FDCWD, AT_SYMLINK_NOFOLLOW, MOUNT_ATTR_RDONLY = -100, 0x100, 1
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
# Access rights, by the ABI that brought them.
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE = sum(1 << bit for bit in range(6, 13))  # char, dir, reg, sock, fifo, block, sym
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKET, SCOPE_SIGNAL = 1, 2  # only within the sandbox, from ABI 6 on
FILE_RIGHTS = WRITE_FILE | TRUNCATE | IOCTL_DEV
DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/dev/random",
    "/dev/urandom",
)

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A system call; exits with a message when it fails."""
    result = libc.syscall(number, *arguments)
    if result < 0:
        fail(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return int(result)


def fail(reason: str) -> NoReturn:
    """Say why and refuse to run the command unconfined."""
    sys.stderr.write(f"sandbox: {reason}\n")
    sys.exit(126)


def handled_rights(abi: int) -> int:
    """The write rights that this ABI can take away."""
    rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    rights |= REFER if abi >= 2 else 0
    rights |= TRUNCATE if abi >= 3 else 0
    return rights


def allow_writes(ruleset: int, path: str, rights: int) -> None:
    """Give the rights back below `path`; a missing path is passed over."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= FILE_RIGHTS
    rule = struct.pack("=Qi", rights, descriptor)
    call(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.c_char_p(rule), 0)
    os.close(descriptor)


def unshare(namespaces: int) -> bool:
    """Move into new namespaces, with a user namespace around them where that is needed; False where it is forbidden."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(namespaces) == 0:
        return True
    if libc.unshare(CLONE_NEWUSER | namespaces) != 0:
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(text)
    except OSError:
        return False
    return True


def private_network() -> bool:
    """Move into a network namespace with nothing but a loopback; False where that is not permitted."""
    return unshare(CLONE_NEWNET) and raise_loopback()


def keep(pinned: list[str], read_only: list[str], links: list[tuple[str, str]]) -> bool:
    """Mount these over themselves, in a mount namespace of its own; False where that is not permitted.

    Landlock lets nobody mount or unmount afterwards. Its rights are those of the folders that the mounts lie in.
    """
    if not unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    for path in map(os.fsencode, (*pinned, *read_only)):
        if libc.mount(path, path, None, MS_BIND | MS_REC, None) != 0 and os.path.lexists(path):
            fail(f"{os.fsdecode(path)} cannot be kept: {os.strerror(ctypes.get_errno())}")
    for path in filter(os.path.lexists, map(os.fsencode, read_only)):
        call(MOUNT_SETATTR, AT_FDCWD, ctypes.c_char_p(path), 0, ctypes.c_char_p(attributes), len(attributes))
    for link, file in links:
        mount_link(os.fsencode(link), os.fsencode(file))
    return True


def can_keep() -> bool:
    """Try it, on this very file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        link = f"{folder}/link"
        os.symlink("nowhere", link)  # noqa: PTH211
        return keep([], [os.path.dirname(__file__)], [(link, __file__)])  # noqa: PTH120


def mount_link(link: bytes, file: bytes) -> None:
    """Mount a symbolic link itself, not what it leads to, over a file."""
    flags = OPEN_TREE_CLONE | AT_SYMLINK_NOFOLLOW
    tree = call(OPEN_TREE, AT_FDCWD, ctypes.c_char_p(link), flags)
    call(MOVE_MOUNT, tree, ctypes.c_char_p(b""), AT_FDCWD, ctypes.c_char_p(file), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def raise_loopback() -> bool:
    """Set IFF_UP on `lo`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))
        except OSError:
            return False
    return True


def main() -> None:
    """Confine, then execute."""
    plan, command = json.loads(sys.argv[1]), sys.argv[2:]
    match plan.get("probe"):
        case "network":
            sys.exit(0 if private_network() else 1)
        case "mounts":
            sys.exit(0 if can_keep() else 1)
        case _:
            pass
    abi = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if abi < 1:
        fail("Landlock is not available")
    rights = handled_rights(abi)
    if plan["read_only"]:  # where that cannot be done it is not: `sandbox_status` says so
        keep(plan["pinned"], plan["read_only"], plan["links"])
    closed = plan["network"] or private_network()
    network = 0 if closed or abi < 4 else BIND_TCP | CONNECT_TCP
    scopes = SCOPE_SIGNAL | (0 if plan["network"] else SCOPE_ABSTRACT_SOCKET)
    attributes = struct.pack("=Q", rights)
    attributes += struct.pack("=Q", network) if abi >= 4 else b""
    attributes += struct.pack("=Q", scopes) if abi >= 6 else b""
    ruleset = call(CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), 0)
    for path in (*plan["writable"], *DEVICES):
        allow_writes(ruleset, path, rights)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        fail("no_new_privs could not be set")
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    try:
        os.execv(command[0], command)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
