"""Names of commands by what they do with their words."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = _names("sh bash dash zsh ksh fish ash mksh busybox")
# They run the command that their words are, or hold.
WRAPPERS = SHELLS | _names(
    """
    env sudo doas xargs timeout nohup time nice ionice stdbuf setsid eval exec command builtin source . trap watch
    script su chroot unshare nsenter flock parallel strace ltrace gdb catchsegv coproc ssh torify proxychains
    firejail bwrap taskset chrt unbuffer faketime dbus-run-session xvfb-run pkexec runuser start-stop-daemon
    systemd-run at batch entr find fd npx pnpx bunx uv uvx poetry pipenv pdm hatch rye nix nix-shell direnv bundle
    docker podman kubectl make just tox nox mise asdf chronic ts perf valgrind screen tmux mosh wsl rlwrap setpriv
    prlimit numactl cgexec fakeroot proot gosu tini dumb-init setarch linux32 linux64 caffeinate gtimeout gnice
    hyperfine nodemon watchexec concurrently
    """
)
INTERPRETERS = _names(
    """
    python perl ruby node nodejs php lua awk gawk mawk deno bun osascript pwsh tclsh expect R Rscript
    """
)
# Their words are never commands, but for what shell_given.py knows.
DATA_COMMANDS = _names(
    """
    echo printf cat head tail grep egrep fgrep rg ls git sed cut tr wc sort uniq diff test [ true false cd pwd
    touch mkdir rm cp mv
    """
)
