"""Hooks: commands that see each call, can stop it with a reason, and can never allow more."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.config import ConfigError, Settings, find_places, load_settings, trust
from pointcode_local.events import AgentEvent, ToolFinished
from pointcode_local.extensions import Hook, parse_hooks
from pointcode_local.hooks import HookRunner
from pointcode_local.tools.base import FileChange, ToolResult
from pointcode_local.tools.sandbox import sandbox_status
from tests.app.agents import end_of, of_type
from tests.app.test_host import Play, ignore, turn, write
from tests.fakes import ScriptedModel, say
from tests.processes import ends


def python(source: str) -> str:
    """A command line that runs Python with `given`, what stood on stdin."""
    return shlex.join([sys.executable, "-I", "-c", f"import json, sys; given = json.load(sys.stdin); {source}"])


def runner(folder: Path, *hooks: Hook) -> HookRunner:
    return HookRunner(hooks, folder, lambda path: path.name)


def before(folder: Path, *hooks: Hook, tool: str = "edit", **arguments: Any) -> str:
    return asyncio.run(runner(folder, *hooks).before(tool, arguments))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", ""),
        ("cat > /dev/null; echo all is well", ""),
        ("echo no such thing >&2; exit 3", "the hook 'echo' objects: no such thing"),
        ("echo printed; exit 1", "the hook 'echo' objects: printed"),
        ("exit 7", "the hook 'exit' objects: exit code 7"),
        ("kill -9 $$", "the hook 'kill' objects: exit code -9"),
        ("""echo '{"verdict": "block", "reason": "not on Fridays"}'""", "the hook 'echo' objects: not on Fridays"),
        ("""echo '{"verdict": "allow"}'; exit 1""", """the hook 'echo' objects: {"verdict": "allow"}"""),
        ("""echo '{"verdict": "allow"}'""", ""),
        ("echo '[1]'", ""),
    ],
)
def test_a_hook_objects_by_its_exit_code_or_its_verdict(tmp_path: Path, command: str, reason: str) -> None:
    assert before(tmp_path, Hook("pre_tool", command)) == reason


def test_a_hook_gets_the_call_on_stdin_in_the_workspace(tmp_path: Path) -> None:
    hook = Hook("pre_tool", python("print(json.dumps({'verdict': 'block', 'reason': json.dumps(given)}))"))
    told = before(tmp_path, hook, path="a b.py", text="ü\ud800")
    given = json.loads(told.removeprefix(f"the hook {sys.executable!r} objects: "))
    assert given == {
        "event": "pre_tool",
        "tool": "edit",
        "arguments": {"path": "a b.py", "text": "ü\ud800"},
        "cwd": str(tmp_path),
    }


def test_only_hooks_for_the_tool_are_asked_and_the_first_objection_counts(tmp_path: Path) -> None:
    hooks = [
        Hook("pre_tool", "echo one; exit 1", ("shell", "wri*")),
        Hook("post_tool", "echo two; exit 1"),
        Hook("pre_tool", "echo three; exit 1", ("edit",)),
        Hook("pre_tool", "touch asked; exit 1"),
    ]
    assert before(tmp_path, *hooks).endswith("three") and before(tmp_path, *hooks, tool="write").endswith("one")
    assert not (tmp_path / "asked").exists()


def test_a_hook_that_takes_too_long_is_ended_and_objects(tmp_path: Path) -> None:
    hook = Hook("pre_tool", "sleep 600 & echo $! > child; wait", timeout_s=1.0)
    assert before(tmp_path, hook) == "the hook 'sleep' took longer than 1 s"
    if (tmp_path / "child").exists():  # a slow machine may not have come that far
        assert ends(int((tmp_path / "child").read_text()))


def test_a_child_that_a_hook_leaves_behind_does_not_hold_the_call(tmp_path: Path) -> None:
    assert before(tmp_path, Hook("pre_tool", "sleep 600 &", timeout_s=60.0)) == ""


def test_much_output_and_unread_input_are_no_trouble(tmp_path: Path) -> None:
    text = "x" * 3_000_000
    assert before(tmp_path, Hook("pre_tool", "head -c 20000000 /dev/zero | tr '\\0' y"), text=text) == ""
    reason = before(tmp_path, Hook("pre_tool", "head -c 20000000 /dev/zero | tr '\\0' y; exit 1"), text=text)
    assert 1000 < len(reason) < 3000
    assert before(tmp_path, Hook("pre_tool", "head -c 200000 /dev/zero | tr '\\0' '['"), text=text) == ""


def test_what_a_hook_objects_to_after_the_call_is_added_to_the_result(tmp_path: Path) -> None:
    source = "print(given['changed_files'], given['result'], given['is_error']); sys.exit(1)"
    change = FileChange(tmp_path / "a.py", b"", b"x")
    result = ToolResult("Edited.", changes=(change,))
    hooks = runner(tmp_path, Hook("post_tool", python(source)), Hook("post_tool", "true"))
    after = asyncio.run(hooks.after("edit", {}, result))
    assert after.text == f"Edited.\n[the hook {sys.executable!r} objects: ['a.py'] Edited. False]"
    assert after.is_error and after.changes == (change,)


@pytest.mark.skipif(sandbox_status().kind == "none", reason="no sandbox on this machine")
def test_a_hook_runs_in_the_sandbox(tmp_path: Path) -> None:
    root, outside = tmp_path / "ws", Path.home() / ".pointcode-hook-escape"
    root.mkdir()
    before(root, Hook("pre_tool", f"touch inside; touch {shlex.quote(str(outside))}"))
    escaped = outside.exists()
    outside.unlink(missing_ok=True)
    assert (root / "inside").exists() and not escaped


def play(folder: Path, *hooks: Hook, mode: str = "accept-edits") -> tuple[list[AgentEvent], Path]:
    model = ScriptedModel(write("new.txt", "x\n"), say("Done."))
    host_play = Play(folder, model, settings=Settings(permission_mode=mode, hooks=hooks))

    async def run() -> list[AgentEvent]:
        host = host_play.host()
        events = list(await turn(await host.open(ignore), answer="deny"))
        await host.undo()
        await host.close()
        return events

    return asyncio.run(run()), host_play.cwd


def test_a_blocked_call_is_not_run_and_the_model_is_told_why(tmp_path: Path) -> None:
    events, cwd = play(tmp_path, Hook("pre_tool", "echo frozen; exit 1", ("write",)))
    finished = of_type(events, ToolFinished)[0]
    assert finished.is_error and finished.text == "Not run: the hook 'echo' objects: frozen"
    assert end_of(events).outcome == "done" and not (cwd / "new.txt").exists()


def test_a_hook_cannot_allow_what_permissions_forbid(tmp_path: Path) -> None:
    hook = Hook("pre_tool", """touch asked; echo '{"verdict": "allow"}'""")
    events, cwd = play(tmp_path, hook, mode="ask")
    assert of_type(events, ToolFinished)[0].denied and not (cwd / "new.txt").exists()
    assert not (cwd / "asked").exists()


def test_what_a_hook_changes_after_a_call_is_undone_with_it(tmp_path: Path) -> None:
    events, cwd = play(tmp_path, Hook("post_tool", "echo more >> new.txt", ("write",)))
    assert not of_type(events, ToolFinished)[0].is_error
    assert not (cwd / "new.txt").exists()


def test_cancelling_a_call_ends_its_hook(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def run() -> int:
        hook = Hook("pre_tool", "echo $$ > pipe; exec sleep 600", timeout_s=300.0)
        task = asyncio.create_task(runner(tmp_path, hook).before("edit", {}))
        number = int(await asyncio.to_thread(pipe.read_text))  # the hook has started
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return number

    assert ends(asyncio.run(run()))


HOOKS = '[[hooks.pre_tool]]\ncommand = "check"\ntools = ["edit"]\ntimeout_s = 5\n'


def test_a_projects_hooks_count_only_while_its_file_is_trusted(tmp_path: Path) -> None:
    places = find_places({"POINTCODE_HOME": str(tmp_path / "home")})
    places.config.mkdir()
    places.user_file.write_text('[[hooks.post_tool]]\ncommand = "mine"\n')
    project = tmp_path / "repo" / ".pointcode" / "config.toml"
    project.parent.mkdir(parents=True)
    project.write_text(HOOKS)
    mine, theirs = Hook("post_tool", "mine"), Hook("pre_tool", "check", ("edit",), 5.0)

    def hooks() -> tuple[Hook, ...]:
        return load_settings(places, tmp_path / "repo", {}, {}).hooks

    assert hooks() == (mine,)
    trust(project, places)
    assert hooks() == (mine, theirs)
    project.write_text(HOOKS.replace('"check"', '"check; curl evil"'))
    assert hooks() == (mine,)


@pytest.mark.parametrize("command", ["./check.sh", "sh -c 'cd . && sh tools/../check.sh;'", "env A=1 ./check.sh|cat"])
def test_a_script_of_the_project_that_a_trusted_hook_runs_is_trusted_with_it(tmp_path: Path, command: str) -> None:
    places = find_places({"POINTCODE_HOME": str(tmp_path / "home")})
    project, script = tmp_path / "repo" / ".pointcode" / "config.toml", tmp_path / "repo" / "check.sh"
    project.parent.mkdir(parents=True)
    (tmp_path / "repo" / "tools").mkdir()
    project.write_text(f'[[hooks.pre_tool]]\ncommand = "{command}"\n')
    script.write_text("exit 0\n")
    trust(project, places)
    assert load_settings(places, tmp_path / "repo", {}, {}).hooks
    (tmp_path / "repo" / "other.sh").write_text("exit 1\n")
    assert load_settings(places, tmp_path / "repo", {}, {}).hooks
    script.write_text("curl evil\n")
    assert not load_settings(places, tmp_path / "repo", {}, {}).hooks
    trust(project, places)
    script.unlink()
    assert not load_settings(places, tmp_path / "repo", {}, {}).hooks


@pytest.mark.parametrize(
    "text",
    [
        '[[hooks.before]]\ncommand = "x"\n',
        "[hooks]\npre_tool = 1\n",
        '[[hooks.pre_tool]]\ncommand = ""\n',
        '[[hooks.pre_tool]]\ncommand = "x"\ntools = "edit"\n',
        '[[hooks.pre_tool]]\ncommand = "x"\ntimeout_s = -1\n',
        '[[hooks.pre_tool]]\ncommand = "x"\nwhat = 1\n',
    ],
)
def test_malformed_hooks_are_an_error_that_names_the_line(tmp_path: Path, text: str) -> None:
    places = find_places({"POINTCODE_HOME": str(tmp_path)})
    places.user_file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.toml:\d+: "):
        load_settings(places, tmp_path, {}, {})
    assert parse_hooks({}) == ()
