"""No line built from the known tricks is classed as safe when something in it writes, executes or reaches out."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.permission import Allow, Deny
from pointcode_local.tools.workspace import Workspace

from .permission_kit import WORDY, shell

HARM = st.sampled_from(
    [
        *("rm a.txt", "touch b", "mv a.txt b.txt", "tee b.txt", "dd if=a.txt of=b.txt", "chmod +x a.txt", "ln -s / r"),
        *("sh evil.sh", "./evil", "python3 -c 1", "perl -e 1", "node x.js", "awk 'BEGIN{system(\"x\")}'", "make evil"),
        *("curl http://x", "wget x", "nc x 1", "ssh x", "git push", "scp a.txt x:", "rsync a.txt x:"),
        *("find . -delete", "find . -exec rm {} +", "sort -o b.txt a.txt", "sed -i s/a/b/ a.txt", "sed -n w\\ b a.txt"),
        *("git -c core.pager=x log", "git diff --output=b", "rg --pre ./evil x", "uniq a.txt b.txt", "tree -o b.txt"),
        *("echo x > b.txt", "echo x >> a.txt", "cat a.txt >| b.txt", "ls &> b.txt", "echo x >& b.txt", ": > a.txt"),
    ]
)
WRAPPERS = st.sampled_from(
    [
        *("env {}", "env A=1 {}", "sudo {}", "timeout 5 {}", "nohup {}", "time {}", "nice -n 5 {}", "xargs {}"),
        *("command {}", "builtin {}", "exec {}", "! {}", "A=1 {}", "LD_PRELOAD=./x {}", "stdbuf -o0 {}", "setsid {}"),
        *("ls; {}", "ls && {}", "ls || {}", "ls | {}", "ls & {}", "ls\n{}", "{} ; ls", "{} | cat", "{} && ls", "{} &"),
        *("( {} )", "{{ {}; }}", "if true; then {}; fi", "for i in 1; do {}; done", "while {}; do :; done"),
        *("f() {{ {}; }}; f", "coproc {}", "case x in x) {};; esac", "echo $({})", "echo `{}`", 'ls "$({})"'),
        *("cat <({})", "ls > >({})", "cat <<< $({})", "echo ${{x:-$({})}}", "[[ -n $({}) ]]", "echo $(( $({}) ))"),
        *("eval '{}'", "sh -c '{}'", "bash -lc '{}'", "eval {}", "cat a.txt | sh -c '{}'", "trap '{}' EXIT; ls"),
        *("ls # \n{}", "ls \\\n; {}", "cat << E\n$({})\nE", "true;{}", "ls&&{}", "ls|{}", "alias ls='{}'; ls"),
    ]
)
DISGUISES = st.sampled_from(
    [
        lambda line: line,
        lambda line: "\\" + line,
        lambda line: f"{line[0]}''{line[1:]}",
        lambda line: f'"{line.split()[0]}"{line[len(line.split()[0]) :]}',
        lambda line: f"$'{line.split()[0]}'{line[len(line.split()[0]) :]}",
        lambda line: f"{line[0]}\\\n{line[1:]}",
        lambda line: f"${{x:-{line.split()[0]}}}{line[len(line.split()[0]) :]}",
        lambda line: f"/bin/{line}",
        lambda line: f"x={line.split()[0]}; $x{line[len(line.split()[0]) :]}",
        lambda line: f"\t {line} ",
    ]
)


@settings(max_examples=400, deadline=None)
@given(HARM, DISGUISES, st.lists(WRAPPERS, max_size=3), st.booleans())
def test_nothing_that_writes_executes_or_reaches_out_is_classed_as_safe(
    workspace: Workspace, harm: str, disguise: object, wrappers: list[str], with_rules: bool
) -> None:
    assert callable(disguise)
    line = str(disguise(harm))
    for wrapper in wrappers:
        line = wrapper.format(line)
    allow = [rule for rule in WORDY if rule != "make *"] if with_rules else []
    if with_rules and (harm == "git push" or harm.startswith(("echo x >", ": >"))) and not wrappers:
        allow = []  # `git *` was meant to cover it
    assert shell(workspace, line, allow=allow) is not Allow
    assert shell(workspace, line, "plan") is Deny


def test_the_harm_is_real_and_the_disguises_are_what_bash_undoes(tmp_path: Path) -> None:
    for number, wrapper in enumerate(("{}", "ls; {}", "( {} )", "echo $({})", "eval '{}'", "f() {{ {}; }}; f")):
        for line in ("touch b", "\\touch b", "t''ouch b", '"touch" b', "$'touch' b", "x=touch; $x b", "${x:-touch} b"):
            folder = tmp_path / f"{number}-{abs(hash(line))}"
            folder.mkdir()
            text = wrapper.format(line)
            if "'" in line and "'" in wrapper:
                continue
            subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, check=False, timeout=20)
            assert (folder / "b").exists(), text
