"""The environment of every git process of this project.

A repository, a user's settings and the environment can make git run commands, or work elsewhere.
This environment fixes git's repository, and keeps the content of trees from becoming commands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_images.host.network import Network, split_user

_SETTINGS = {
    "advice.detachedHead": "false",
    "core.autocrlf": "false",
    # A user's own setting may run files of a tree.
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    # No submodule may be a command or a folder of this host.
    "protocol.ext.allow": "never",
    "protocol.file.allow": "user",
    # Give up a server that sends less than 1,000 bytes a second for a minute.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
# Programs that git starts show the URL in their command lines, so it must have no password.
_USER, _PASSWORD = "TORCH_IMAGES_USER", "TORCH_IMAGES_PASSWORD"
_HELPER = f"""!f() {{ printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
# These variables would make git work in another repository.
_ELSEWHERE = (
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE"),
    *("GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"),
    *("GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE"),
)


def environment(
    network: Network | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str | None]:
    """Git's environment, also for submodules: the user's own settings, overridden by ours.

    Each setting has its own variable, so that no text can end one and begin another.
    Raises ConfigError for a mirror that is not a URL.
    """
    settings = [*_SETTINGS.items()]
    variables: dict[str, str | None] = dict.fromkeys(_ELSEWHERE)
    variables |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if network and network.source_mirror:
        mirror, user, word = split_user(network.source_mirror)
        settings.append((f"url.{mirror}/.insteadOf", "https://"))
        if user or word:
            place = "/".join(mirror.split("/")[:3])
            # Only our helper: another one might store the password.
            settings += [(f"credential.{place}.helper", helper) for helper in ("", _HELPER)]
            variables |= {_USER: user, _PASSWORD: word}
    if network and network.ca_bundle:
        variables["GIT_SSL_CAINFO"] = str(network.ca_bundle)
    count = environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    for number, (key, value) in enumerate(settings, first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**variables, "GIT_CONFIG_COUNT": str(first + len(settings))}
