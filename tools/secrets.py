"""Which files hold secrets: environment files, private keys, credentials. Judged by name alone, in any letter case."""

from __future__ import annotations

import re
from pathlib import PurePath

EXAMPLE = re.compile(
    r"\.(example|sample|template|dist|defaults?|tpl|tmpl)(\.(json|ya?ml|toml|ini|txt|cfg|conf|properties))?$"
)
FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".gcloud", ".password-store", ".oci"})
NAMES = frozenset(
    {
        ".netrc",
        "_netrc",
        ".pgpass",
        ".my.cnf",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
        ".htpasswd",
        ".vault-token",
        ".s3cfg",
        ".boto",
        ".dockercfg",
        "credentials",
        "credentials.json",
        "credentials.yml",
        "credentials.yaml",
        "credentials.toml",
        "client_secret.json",
        "service-account.json",
        "service_account.json",
        "secrets.json",
        "secrets.yml",
        "secrets.yaml",
        "secrets.toml",
        "master.key",
        "local.settings.json",
        "rclone.conf",
        ".terraformrc",
        "credentials.tfrc.json",
        "wallet.dat",
        "application_default_credentials.json",
    }
)
PATTERNS = tuple(
    re.compile(p)
    for p in (
        r"\.env",
        r"\.env[.\-_].+",
        r".+\.env",
        r"\.envrc(\..+)?",
        r"id_(rsa|dsa|ecdsa|ed25519)([._-].*)?",
        r".+\.(pem|key|p12|pfx|jks|keystore|ppk|kdbx|asc|gpg|pgp|ovpn|p8|der)",
        r".*(^|[._-])(secrets?|credentials?)([._-][\w.-]*)?\.(json|ya?ml|toml|ini|txt|env|cfg|conf|properties)",
        r"\.(secrets?|credentials?)",
        r".*service[-_]?account.*\.json",
        r".*[-_]adminsdk[-_].*\.json",
        r"(.+[._-])?kubeconfig(\.ya?ml)?",
        r".+\.tfstate(\.backup)?",
        r"\.\w+_history",
        r"\.?vault[._-]?pass(word)?(\.txt)?",
        r".+\.tfvars(\.json)?",
    )
)


def is_secret(path: PurePath) -> bool:
    """Does a (resolved) path name a file that must not be read without asking? Public keys and examples are free."""
    parts = [part.casefold() for part in path.parts]
    if not parts:
        return False
    name = parts[-1]
    if EXAMPLE.search(name) or name.endswith(".pub") or name == "known_hosts":
        return False
    if any(part in FOLDERS for part in parts):
        return True
    if parts[:2] == ["/", "proc"] and name == "environ":
        return True
    if parts[-2:] in ([".docker", "config.json"], ["gh", "hosts.yml"]) or parts[-3:-1] == [".config", "gcloud"]:
        return True
    return name in NAMES or any(pattern.fullmatch(name) for pattern in PATTERNS)
