"""Names of commands by what they do with their words."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = _names("sh bash dash zsh ksh fish ash mksh busybox")
# Run others as their work: a rule with a wildcard may cover them (`make *`).
RUNNERS = _names(
    """
    docker podman kubectl make just npx uv uvx poetry pipenv pdm hatch rye nix tox nox mise asdf bundle bunx pnpx
    find fd
    """
)
# They run the command that their words are, or hold.
WRAPPERS = (
    SHELLS
    | RUNNERS
    | _names(
        """
        env sudo doas xargs timeout nohup time nice ionice stdbuf setsid eval exec command builtin source . trap watch
        script su chroot unshare nsenter flock parallel strace ltrace gdb catchsegv coproc ssh torify proxychains
        firejail bwrap taskset chrt unbuffer faketime dbus-run-session xvfb-run pkexec runuser start-stop-daemon
        systemd-run at batch entr nix-shell direnv chronic ts perf valgrind screen tmux mosh wsl rlwrap setpriv prlimit
        numactl cgexec fakeroot proot gosu tini dumb-init setarch linux32 linux64 caffeinate gtimeout gnice hyperfine
        nodemon watchexec concurrently
        """
    )
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
# They change what later words mean, or run what they are given: never covered by a rule with a wildcard.
NEVER_BY_WILDCARD = (WRAPPERS - RUNNERS) | _names(
    """
    export declare typeset readonly local unset set shopt enable hash alias unalias pushd popd mapfile readarray
    read let getopts umask ulimit bind complete fc history jobs fg bg disown wait kill return exit break continue
    shift
    """
)
