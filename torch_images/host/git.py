"""The environment in which every git of ours runs.

Git lets a repository, a user and the environment say what it runs and where. Here it works where
it is told to, and what it reads cannot become a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from torch_images.errors import ConfigError
from torch_images.host.network import Network, split_user

_SETTINGS = {
    "advice.detachedHead": "false",
    "core.autocrlf": "false",
    # A user's own may run what lies in a tree.
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    # No submodule is a command or a folder of this host, whatever its tree says.
    "protocol.ext.allow": "never",
    "protocol.file.allow": "user",
    # A server that brings less than 1,000 bytes a second for a minute is given up.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
# The programs that git starts for a URL have it in their command lines, so it has no password.
_USER, _PASSWORD = "TORCH_IMAGES_USER", "TORCH_IMAGES_PASSWORD"
_HELPER = f"""!f() {{ printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
# They would have git work in another repository than the one it is told to.
_ELSEWHERE = (
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE"),
    *("GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"),
    *("GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE"),
)


def environment(
    network: Network | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str | None]:
    """Git's environment, also for submodules: the user's own settings, with ours on top.

    Settings are handed over one by one, where no text can end one and begin another.
    Raises ConfigError for a mirror that is not one line.
    """
    settings = [*_SETTINGS.items()]
    variables: dict[str, str | None] = dict.fromkeys(_ELSEWHERE)
    variables |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if network and network.source_mirror:
        if not network.source_mirror.isprintable():
            raise ConfigError("TORCH_IMAGES_SOURCE_MIRROR is not one line of text", "correct it")
        mirror, user, word = split_user(network.source_mirror)
        settings.append((f"url.{mirror}/.insteadOf", "https://"))
        if user or word:
            if not (user + word).isprintable():
                raise ConfigError(
                    "the password in TORCH_IMAGES_SOURCE_MIRROR is not one line", "correct it"
                )
            place = "/".join(mirror.split("/")[:3])
            # Ours alone: another one might keep what it is told.
            settings += [(f"credential.{place}.helper", helper) for helper in ("", _HELPER)]
            variables |= {_USER: user, _PASSWORD: word}
    if network and network.ca_bundle:
        variables["GIT_SSL_CAINFO"] = str(network.ca_bundle)
    count = environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if re.fullmatch("[0-9]{1,6}", count) else 0
    for number, (key, value) in enumerate(settings, first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**variables, "GIT_CONFIG_COUNT": str(first + len(settings))}
