"""Whatever commands did to files and links in several turns is undone turn by turn, and done again."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from pointcode_local.checkpoints import Checkpoints
from pointcode_local.tree_watch import TreeWatch

NAMES = ["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "l", "l2", "k"]
TARGETS = ["nowhere", "a", "d", "."]


def command(chance: random.Random) -> str:
    """Something to do with two names, which may fail."""
    n, m = chance.choice(NAMES), chance.choice(NAMES)
    return chance.choice(
        [
            *(
                f"echo {chance.randrange(9)} > {n}",
                f"echo {chance.randrange(9)} >> {n}",
                f"rm -rf {n}",
                f"mkdir -p {n}",
            ),
            *(f"mv -T {n} {m}", f"ln -sfn {m} {n}", f"ln -s {chance.choice(TARGETS)} {n}", f"touch {n}", f"ln {n} {m}"),
            *(f"chmod {chance.choice(['600', '755', '444'])} {n}", f"cp -rT {n} {m}", f"rm -f {n}; ln -s {m} {n}"),
        ]
    )


def files_in(root: Path) -> dict[str, tuple[int, Path | bytes]]:
    """Files and links with mode and content; empty folders are nobody's work."""
    found = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.read_bytes(),
        )
        for path in found
    }


@pytest.mark.parametrize("seed", range(24))
def test_what_commands_did_is_undone_and_done_again(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "ws"
    root.mkdir()
    watch, kept = TreeWatch(root), Checkpoints(tmp_path / "state")

    def run(n: int) -> None:
        script = "; ".join(command(chance) for _ in range(n))
        subprocess.run(["bash", "-c", script], cwd=root, capture_output=True, check=False)

    run(8)
    states = [files_in(root)]
    for number in (1, 2, 3):
        assert watch.before()
        run(chance.randrange(1, 7))
        kept.commanded(number, watch.after())
        states.append(files_in(root))
    steps = [(before, after) for before, after in zip(states, states[1:], strict=False) if before != after]
    for before, _ in reversed(steps):
        assert not kept.undo().skipped
        assert files_in(root) == before
    for _, after in steps:
        assert not kept.redo().skipped
        assert files_in(root) == after


def test_an_empty_folder_in_the_place_of_a_file_makes_way_and_one_with_something_in_it_does_not(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    watch, kept = TreeWatch(root), Checkpoints(tmp_path / "state")
    for name in "ab":
        (root / name).write_text(name)
    assert watch.before()
    subprocess.run(["bash", "-c", "rm a b; mkdir -p a/x/y b"], cwd=root, check=True)
    kept.commanded(1, watch.after())
    (root / "b" / "mine").write_text("mine")
    undone = kept.undo()
    assert undone.restored == (root / "a",) and undone.skipped == (root / "b",)
    assert (root / "a").read_text() == "a" and (root / "b" / "mine").read_text() == "mine"
