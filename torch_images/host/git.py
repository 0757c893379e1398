"""The environment in which every git of ours runs.

Git lets a repository, a user and the environment say what it runs and where. Here it works where
it is told to, and what it reads cannot become a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from torch_images.errors import ConfigError
from torch_images.host.network import Network

_SETTINGS = {
    "advice.detachedHead": "false",
    "core.autocrlf": "false",
    # A user's own may run what lies in a tree.
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    # No submodule is a command or a folder of this host, whatever its tree says.
    "protocol.ext.allow": "never",
    "protocol.file.allow": "user",
}
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
    settings = dict(_SETTINGS)
    variables: dict[str, str | None] = dict.fromkeys(_ELSEWHERE)
    variables |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if network and network.source_mirror:
        if not network.source_mirror.isprintable():
            raise ConfigError("TORCH_IMAGES_SOURCE_MIRROR is not one line of text", "correct it")
        settings[f"url.{network.source_mirror}/.insteadOf"] = "https://"
    if network and network.ca_bundle:
        variables["GIT_SSL_CAINFO"] = str(network.ca_bundle)
    count = environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if re.fullmatch("[0-9]{1,6}", count) else 0
    for number, (key, value) in enumerate(settings.items(), first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**variables, "GIT_CONFIG_COUNT": str(first + len(settings))}
