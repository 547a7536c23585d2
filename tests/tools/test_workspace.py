"""Where paths lead, and what the model has seen."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools.base import ToolError
from pointcode_local.tools.secrets import is_secret
from pointcode_local.tools.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "proj"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "proj-other").mkdir()
    (root / "link").symlink_to(tmp_path / "proj-other")
    (root / "self").symlink_to("self")
    return Workspace(root)


@pytest.mark.parametrize(
    ("text", "name", "inside"),
    [
        ("a.txt", "a.txt", True),
        ("./sub/../a", "a", True),
        (".", ".", True),
        ("sub/", "sub", True),
        ("new/deep/x", "new/deep/x", True),
        ("~name", "~name", True),
        ("$HOME", "$HOME", True),
        ("..", None, False),
        ("../proj-other/x", None, False),
        ("link", None, False),
        ("link/x/y", None, False),
        ("~/x", None, False),
        ("/", None, False),
        ("sub/../../proj/sub", "sub", True),
    ],
)
def test_a_path_leads_where_the_system_says(workspace: Workspace, text: str, name: str | None, inside: bool) -> None:
    place = workspace.resolve(text)
    assert place.inside is inside
    assert place.name == (name if inside else str(place.path))


def test_an_absolute_path_inside_is_inside_and_a_look_alike_is_not(workspace: Workspace) -> None:
    assert workspace.resolve(f"{workspace.root}/sub").inside
    assert not workspace.resolve(f"{workspace.root}-other").inside
    assert not workspace.resolve(f"{workspace.root}/../proj-other").inside


@pytest.mark.parametrize("text", ["", "a\x00b", "\ud800"])
def test_an_impossible_path_is_refused(workspace: Workspace, text: str) -> None:
    with pytest.raises(ToolError):
        workspace.resolve(text)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["..", ".", "sub", "a", "", "link", "self", "~"]), min_size=1, max_size=6).map("/".join)
)
def test_inside_means_that_the_resolved_path_is_below_the_root(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "proj"
        (root / "sub").mkdir(parents=True)
        (root / "link").symlink_to("/usr")
        place = Workspace(root).resolve(text or ".")
        assert place.inside == (place.path == root or str(place.path).startswith(f"{root}/"))


def test_a_stamp_holds_for_the_bytes_that_were_seen(workspace: Workspace) -> None:
    path = workspace.root / "f"
    assert workspace.unseen_reason(path, b"a\nb\n") is not None
    workspace.note_seen(path, b"a\nb\n", 1, 2)
    assert "line 2" in str(workspace.unseen_reason(path, b"a\nb\n"))
    workspace.note_seen(path, b"a\nb\n", 2, 3)
    assert workspace.unseen_reason(path, b"a\nb\n") is None
    assert "changed" in str(workspace.unseen_reason(path, b"a\nb\nc"))
    assert workspace.unseen_reason(path, b"") is None


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.local",
        ".env-prod",
        "x.env",
        ".envrc",
        "ID_RSA",
        "a/.ssh/config",
        "b/.aws/config",
        "c.pem",
        "d.p12",
        ".netrc",
        "secrets.yaml",
        "db.credentials.json",
        "prod.tfvars",
        ".docker/config.json",
        "/proc/self/environ",
        "credentials",
        *("serviceAccountKey.json", "service-account-prod.json", "app-firebase-adminsdk-x1.json", "kubeconfig"),
        *(
            "prod.kubeconfig",
            "rclone.conf",
            ".config/gh/hosts.yml",
            ".config/gcloud/credentials.db",
            "a.tfstate.backup",
        ),
        *(
            "secrets.prod-2.eu.yaml",
            "secrets.prod.yaml",
            ".secrets",
            ".bash_history",
            ".psql_history",
            "credentials.tfrc.json",
        ),
    ],
)
def test_files_that_hold_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret(PurePosixPath(name)) and is_secret(PurePosixPath("/deep/er") / name)


@pytest.mark.parametrize(
    "name",
    [
        ".env.example",
        ".env.sample",
        ".env.dist",
        "env.py",
        "environment",
        "environ",
        "/proc/meminfo",
        "id_rsa.pub",
        "known_hosts",
        "secret_santa.py",
        "secrets.py",
        "keyboard.c",
        "a.keys",
        "README.md",
        "config.json",
        *("service_account.py", "kubeconfig.go", "history", "shell_history.py", "hosts.yml", "secrets.prod.py"),
        *("my.secrets.example.yaml", "service-account.example.json"),
        "secret" + "_a" * 120 + ".py",  # looked at in one pass
    ],
)
def test_names_that_only_look_like_secrets_are_free(name: str) -> None:
    assert not is_secret(PurePosixPath(name))
