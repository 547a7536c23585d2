"""Files and terminals of the editor: unsaved changes are seen, writes go through it, commands run where they show."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.acp.files import as_bytes
from pointcode_local.config import Settings
from tests.app.acp.kit import Answer, EditorKit, Later, Message, Refused, permitting
from tests.fakes import ScriptedModel, Step, call, say

READS = {"fs": {"readTextFile": True, "writeTextFile": False}}
ACCEPT = Settings(permission_mode="accept-edits")


class Editor:
    """What an editor offers; `kit` starts one with a model that takes some steps and says "ok"."""

    capabilities: Message = {}

    def answers(self) -> dict[str, Answer]:
        return permitting()

    def kit(
        self,
        folder: Path,
        *steps: Step,
        settings: Settings | None = None,
        capabilities: Message | None = None,
        answers: dict[str, Answer] | None = None,
    ) -> EditorKit:
        self.model = ScriptedModel(*steps, say("ok"))
        all_answers = {**self.answers(), **(answers or {})}
        offered = self.capabilities if capabilities is None else capabilities
        return EditorKit(folder, self.model, settings=settings, capabilities=offered, answers=all_answers)


class Buffers(Editor):
    """The editor's open files. What is not open is read from disk; what is written is saved."""

    capabilities: Message = {"fs": {"readTextFile": True, "writeTextFile": True}}

    def __init__(self, **unsaved: str) -> None:
        self.unsaved = {name.replace("_", "."): text for name, text in unsaved.items()}
        self.read: list[str] = []
        self.written: list[tuple[str, str]] = []

    def answers(self) -> dict[str, Answer]:
        return {"fs/read_text_file": self._read, "fs/write_text_file": self._write, **super().answers()}

    def _read(self, params: Message) -> Message:
        path = Path(params["path"])
        assert path.is_absolute()
        self.read.append(path.name)
        if path.name in self.unsaved:
            return {"content": self.unsaved[path.name]}
        return {"content": path.read_bytes().decode().replace("\r\n", "\n").removeprefix("\ufeff")}

    def _write(self, params: Message) -> Message:
        path = Path(params["path"])
        self.unsaved.pop(path.name, None)
        self.written.append((path.name, params["content"]))
        path.write_bytes(params["content"].encode())
        return {}


def workspace(folder: Path, **files: str | bytes) -> None:
    (folder / "ws").mkdir()
    for name, text in files.items():
        (folder / "ws" / name.replace("_", ".")).write_bytes(text if isinstance(text, bytes) else text.encode())


async def test_the_model_reads_and_edits_what_is_not_saved_yet(tmp_path: Path):
    workspace(tmp_path, a_py="one\n")
    editor_files = Buffers(a_py="one\nTYPED = 1\n")
    edit = call("edit", path="a.py", edits=[{"old": "TYPED = 1", "new": "TYPED = 2"}])
    async with editor_files.kit(tmp_path, call("read", path="a.py"), edit) as editor:
        await editor.prompt(await editor.new())
        assert "TYPED = 1" in str(editor_files.model.requests[1].messages[-1].content)
        assert editor_files.read == ["a.py"] * 3  # once for the read; for the edit's preview, and again when it runs
        (asked,) = [m for m in editor.asked if m["method"] == "session/request_permission"]
        diff = asked["params"]["toolCall"]["content"][0]
        assert (diff["oldText"], diff["newText"]) == ("one\nTYPED = 1\n", "one\nTYPED = 2\n")
        assert editor_files.written == [("a.py", "one\nTYPED = 2\n")]
        assert editor.call()["status"] == "completed"


async def test_what_is_typed_while_the_person_is_asked_is_not_lost(tmp_path: Path):
    workspace(tmp_path, a_py="one\ntwo\n")
    editor_files = Buffers()

    def answer(params: Message) -> Message:
        editor_files.unsaved["a.py"] = "one\nTYPED\ntwo\n"
        return permitting()["session/request_permission"](params)

    edit = call("edit", path="a.py", edits=[{"old": "two", "new": "2"}])
    async with editor_files.kit(tmp_path, edit, answers={"session/request_permission": answer}) as editor:
        await editor.prompt(await editor.new())
        assert (editor.ws / "a.py").read_text() == "one\nTYPED\n2\n"


async def test_a_linked_file_reaches_the_model_with_its_unsaved_changes(tmp_path: Path):
    workspace(tmp_path, a_py="one\n", b_py="saved\n", _env="KEY=1\n")
    editor_files = Buffers(a_py="one\nTYPED\n", _env="KEY=2\n")
    async with editor_files.kit(tmp_path) as editor:
        session = await editor.new()
        links = [
            {"type": "resource_link", "name": n, "uri": f"file://{editor.ws}/{n}"} for n in ("a.py", "b.py", ".env")
        ]
        await editor.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Compare"}, *links])
        (seen,) = [m.content for m in editor_files.model.requests[0].messages if m.role == "user"]
        assert "[contents of a.py, as the editor shows it]\none\nTYPED\n" in seen
        assert "[contents of @b.py]\nsaved\n" in seen and "Compare a.py @b.py @.env" in seen
        assert "KEY=" not in seen and editor_files.read == ["a.py", "b.py"]


async def test_undo_brings_back_the_unsaved_text(tmp_path: Path):
    workspace(tmp_path, a_py="one\n")
    editor_files = Buffers(a_py="one\nTYPED\n")
    edit = call("edit", path="a.py", edits=[{"old": "one", "new": "1"}])
    async with editor_files.kit(tmp_path, edit, settings=ACCEPT) as editor:
        session = await editor.new()
        await editor.prompt(session)
        assert (editor.ws / "a.py").read_text() == "1\nTYPED\n"
        await editor.prompt(session, "/undo")
        assert (editor.ws / "a.py").read_text() == "one\nTYPED\n"


@pytest.mark.parametrize(
    "before",
    [b"one\r\ntwo\r\n", b"\xef\xbb\xbfone\ntwo\n", b"one\r\ntwo\n", b"one\rtwo", b"caf\xe9 one\ntwo\n", b"one\ntwo"],
)
async def test_untouched_bytes_stay_whatever_the_editor_makes_of_line_ends(tmp_path: Path, before: bytes):
    workspace(tmp_path, a_txt=before)
    editor_files = Buffers()
    edit = call("edit", path="a.txt", edits=[{"old": "one", "new": "1"}])
    async with editor_files.kit(tmp_path, edit, settings=ACCEPT) as editor:
        await editor.prompt(await editor.new())
        assert (editor.ws / "a.txt").read_bytes() == before.replace(b"one", b"1")
        is_text = b"\xe9" not in before
        assert bool(editor_files.written) == is_text, "what is no UTF-8 is written to disk"


async def test_new_files_and_folders_go_through_the_editor_and_deletions_do_not(tmp_path: Path):
    workspace(tmp_path, old_txt="old\n", a_txt="a\n")
    editor_files = Buffers()
    patch = (
        "*** Begin Patch\n*** Add File: sub/new.txt\n+new\n*** Delete File: old.txt\n"
        "*** Update File: a.txt\n@@\n-a\n+b\n*** End Patch\n"
    )
    async with editor_files.kit(tmp_path, call("patch", patch=patch), settings=ACCEPT) as editor:
        await editor.prompt(await editor.new())
        assert editor.call()["status"] == "completed", editor.call()
        assert sorted(editor_files.written) == [("a.txt", "b\n"), ("new.txt", "new\n")]
        assert not (editor.ws / "old.txt").exists()


async def test_a_refused_write_is_an_error_that_changes_nothing(tmp_path: Path):
    workspace(tmp_path, old_txt="old\n", a_txt="a\n", b_txt="b\n")
    editor_files = Buffers()
    accept = editor_files.answers()["fs/write_text_file"]

    def write(params: Message) -> Any:
        if params["path"].endswith("b.txt"):
            raise Refused("read-only buffer")
        return accept(params)

    patch = (
        "*** Begin Patch\n*** Delete File: old.txt\n*** Update File: a.txt\n@@\n-a\n+A\n"
        "*** Update File: b.txt\n@@\n-b\n+B\n*** End Patch\n"
    )
    answers: dict[str, Answer] = {"fs/write_text_file": write}
    async with editor_files.kit(tmp_path, call("patch", patch=patch), settings=ACCEPT, answers=answers) as editor:
        await editor.prompt(await editor.new())
        assert editor.call()["status"] == "failed"
        assert "read-only buffer" in editor.call()["rawOutput"]["text"]
        assert [(editor.ws / n).read_text() for n in ("old.txt", "a.txt", "b.txt")] == ["old\n", "a\n", "b\n"]


@pytest.mark.parametrize("when", ["before it is written", "while it is written"])
async def test_a_folder_that_is_swapped_for_a_link_is_not_written_through(tmp_path: Path, when: str):
    workspace(tmp_path, a_txt="a\n")
    ws, outside = tmp_path / "ws", tmp_path / "outside"
    for folder in (ws / "d", outside):
        folder.mkdir()
        (folder / "f.txt").write_text("f\n")
    editor_files = Buffers()
    accept = editor_files.answers()["fs/write_text_file"]
    last = "a.txt" if when.startswith("before") else "f.txt"

    def write(params: Message) -> Any:
        done = accept(params)
        if params["path"].endswith(last) and not (ws / "e").exists():
            (ws / "d").rename(ws / "e")
            (ws / "d").symlink_to(outside)
        return done

    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-a\n+A\n*** Update File: d/f.txt\n@@\n-f\n+F\n*** End Patch\n"
    answers: dict[str, Answer] = {"fs/write_text_file": write}
    async with editor_files.kit(tmp_path, call("patch", patch=patch), settings=ACCEPT, answers=answers) as editor:
        await editor.prompt(await editor.new())
        assert editor.call()["status"] == "failed"
        told = editor.call()["rawOutput"]["text"]
        assert "a link came to be" in told and (str(outside) in told) == (last == "f.txt")
        assert (outside / "f.txt").read_text() == "f\n" and (ws / "a.txt").read_text() == "a\n"


async def test_an_editor_that_does_not_give_a_file_leaves_it_to_the_disk(tmp_path: Path):
    workspace(tmp_path, a_txt="on disk\n")

    def refuse(params: Message) -> Any:
        raise Refused("not in this project")

    editor_files = Buffers()
    answers: dict[str, Answer] = {"fs/read_text_file": refuse}
    async with editor_files.kit(tmp_path, call("read", path="a.txt"), capabilities=READS, answers=answers) as editor:
        await editor.prompt(await editor.new())
        assert "on disk" in str(editor_files.model.requests[1].messages[-1].content)


async def test_unsaved_changes_are_never_overwritten_where_the_editor_cannot_write(tmp_path: Path):
    workspace(tmp_path, a_txt="one\n")
    editor_files = Buffers(a_txt="one\nTYPED\n")
    edit = call("edit", path="a.txt", edits=[{"old": "one", "new": "1"}])
    async with editor_files.kit(tmp_path, edit, settings=ACCEPT, capabilities=READS) as editor:
        await editor.prompt(await editor.new())
        assert "ask the user to save it first" in editor.call()["rawOutput"]["text"]
        assert (editor.ws / "a.txt").read_text() == "one\n"


async def test_rules_and_guards_are_ours_whatever_the_editor_offers(tmp_path: Path):
    workspace(tmp_path, deny_txt="x\n", _env="KEY=1\n")
    outside = tmp_path / "outside.txt"
    outside.write_text("outside\n")
    (tmp_path / "ws/link.txt").symlink_to(outside)
    editor_files = Buffers()
    steps: list[Step] = [call("read", path=p) for p in ("deny.txt", ".env", "../outside.txt", "link.txt")]
    rules = Settings(deny=("read(deny.txt)",))
    async with editor_files.kit(tmp_path, *steps, settings=rules, answers=permitting("reject_once")) as editor:
        await editor.prompt(await editor.new())
        asked = [m for m in editor.asked if m["method"] == "session/request_permission"]
        assert len(asked) == 3  # the rule denies without asking
        assert {u["status"] for u in editor.updates("tool_call_update") if "status" in u} == {"failed"}
        assert "outside.txt" not in editor_files.read and "deny.txt" not in editor_files.read


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.text(st.sampled_from("ab\n\r")))
def test_a_buffer_that_only_normalises_leaves_the_bytes(has_mark: bool, text: str):
    text = "\ufeff" * has_mark + text
    shown = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    assert as_bytes(shown, text.encode()) == text.encode()
    assert as_bytes(text, text.encode()) == text.encode()


def test_a_changed_buffer_keeps_the_files_form():
    assert as_bytes("a\nb\n", b"\xef\xbb\xbfa\r\n") == b"\xef\xbb\xbfa\r\nb\r\n"
    assert as_bytes("a\nb\n", b"a\n") == b"a\nb\n"


# ----------------------------------------------------------------------------------------------- terminals
class Terminals(Editor):
    """Terminals that end with `output` and `status`; `status` None: they never end by themselves."""

    capabilities: Message = {"terminal": True}

    def __init__(self, output: str, status: Message | None) -> None:
        self.output, self.status = output, status
        self.made: list[Message] = []
        self.log: list[str] = []

    def answers(self) -> dict[str, Answer]:
        return {
            "terminal/create": self._create,
            "terminal/wait_for_exit": self._wait,
            "terminal/output": self._output,
            "terminal/kill": lambda _: self._note("kill"),
            "terminal/release": lambda _: self._note("release"),
            **super().answers(),
        }

    def _create(self, params: Message) -> Message:
        self.made.append(params)
        return {"terminalId": f"t{len(self.made)}"}

    def _wait(self, params: Message) -> Any:
        return Later() if self.status is None else self.status

    def _output(self, params: Message) -> Message:
        self.log.append("output")
        found: Message = {"output": self.output, "truncated": False}
        return found if self.status is None else {**found, "exitStatus": self.status}

    def _note(self, what: str) -> Message:
        self.log.append(what)
        return {}


def shell(command: str, **more: Any) -> Step:
    return call("shell", command=command, **more)


async def test_a_command_runs_in_a_terminal_of_the_editor(tmp_path: Path):
    terminals = Terminals("\x1b[31m10%\x1b[0m\r100%\n", {"exitCode": 3})
    async with terminals.kit(tmp_path, shell("make it")) as editor:
        session = await editor.new()
        await editor.prompt(session)
        (made,) = terminals.made
        assert made["args"] == ["-c", "--", "make it"] and made["cwd"] == str(editor.ws)
        assert made["sessionId"] == session and {"name": "PAGER", "value": "cat"} in made["env"]
        assert terminals.log == ["output", "release"]
        shown = [u["content"] for u in editor.updates("tool_call_update") if "content" in u]
        assert all({"type": "terminal", "terminalId": "t1"} in content for content in (shown[0], shown[-1]))
        assert editor.call()["rawOutput"]["text"] == "100%\n[exit code 3]"
        assert editor.call()["status"] == "failed"


async def test_a_denied_command_opens_no_terminal(tmp_path: Path):
    terminals = Terminals("", {"exitCode": 0})
    async with terminals.kit(tmp_path, shell("make"), answers=permitting("reject_once")) as editor:
        await editor.prompt(await editor.new())
        assert terminals.made == []


async def test_secrets_are_blanked_in_what_a_terminal_says(tmp_path: Path):
    workspace(tmp_path, _env="TOKEN=abcdef0123456789\n")
    terminals = Terminals("token abcdef0123456789\n", {"exitCode": 0})
    async with terminals.kit(tmp_path, shell("./show")) as editor:
        await editor.prompt(await editor.new())
        seen = terminals.model.requests[1]
        assert "abcdef0123456789" not in str(seen.messages) and "[secret]" in str(seen)


async def test_cancel_ends_the_terminals_command_and_keeps_what_it_said(tmp_path: Path):
    terminals = Terminals("half way\n", None)
    async with terminals.kit(tmp_path, shell("make")) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(lambda: any(m["method"] == "terminal/wait_for_exit" for m in editor.asked))
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert terminals.log == ["kill", "output", "release"]
        assert "half way" in editor.call()["rawOutput"]["text"]


async def test_a_command_that_takes_too_long_is_ended(tmp_path: Path):
    terminals = Terminals("slow\n", None)
    async with terminals.kit(tmp_path, shell("make", timeout_s=1)) as editor:
        await editor.prompt(await editor.new())
        assert "slow\n[timed out after 1 s" in editor.call()["rawOutput"]["text"]
        assert terminals.log == ["kill", "output", "release"]


@pytest.mark.parametrize("case", ["background", "auto", "refused"])
async def test_what_a_terminal_cannot_do_stays_with_our_own_shell(tmp_path: Path, case: str):
    terminals = Terminals("", {"exitCode": 0})
    answers: dict[str, Answer] = {}
    if case == "refused":

        def refuse(params: Message) -> Any:
            raise Refused("no terminals today")

        answers["terminal/create"] = refuse
    mode = Settings(permission_mode="auto" if case == "auto" else "ask")
    step = shell("echo from our shell", **({"background": True} if case == "background" else {}))
    async with terminals.kit(tmp_path, step, settings=mode, answers=answers) as editor:
        await editor.prompt(await editor.new())
        assert terminals.made == []
        text = editor.call()["rawOutput"]["text"]
        assert ("from our shell" in text) or (case == "background" and "job-" in text)


async def test_without_the_capability_nothing_of_the_editor_is_called(tmp_path: Path):
    workspace(tmp_path, a_txt="a\n")
    async with Editor().kit(tmp_path, call("read", path="a.txt"), shell("cat a.txt")) as editor:
        await editor.prompt(await editor.new())
        await asyncio.sleep(0)
        assert {m["method"] for m in editor.asked} <= {"session/request_permission"}
