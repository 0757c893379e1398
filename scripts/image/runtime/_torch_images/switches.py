"""The image's switches, read in one way: 1, on, true, yes or 0, off, false, no, in any case."""

from collections.abc import Mapping

from _torch_images.account import shown

PROFILE, TF32, QUIET = "TORCH_IMAGE_PROFILE", "TORCH_IMAGE_TF32", "TORCH_IMAGE_QUIET"
CXX20 = "TORCH_IMAGE_CXX20"
WORDS = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}
DEFAULTS = {PROFILE: True, TF32: False, QUIET: False, CXX20: True}  # of a value that says neither


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on. TF32 follows the profile if it is not set at all."""
    if name == TF32 and name not in environ:
        return is_on(environ, PROFILE)
    return WORDS.get(environ.get(name, "").strip().lower(), DEFAULTS[name])


def settled(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The switches that are set, as 1 or 0, and a line for each value that says neither."""
    settings, lines = {}, []
    for name in DEFAULTS:
        if value := environ.get(name, "").strip():
            settings[name] = "1" if is_on(environ, name) else "0"
            if value.lower() not in WORDS:
                state = "on" if is_on(environ, name) else "off"
                lines.append(f"{name}={shown(value)} is neither on nor off, so it is {state}")
    return settings, lines
