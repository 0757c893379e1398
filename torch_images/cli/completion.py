"""Completion in shells: the scripts for them, and the words that may follow on a command line.

Invoke's own scripts call a program named `invoke`, and know no values. These call the program that
is being typed, such as ./inv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invoke.parser.context import ParserContext

from torch_images.cli import verb

# Each calls "PROGRAM --complete -- WORDS", with the words up to the cursor. No answer means a file.
_SCRIPTS = {
    "bash": """\
_complete_{function}() {{
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ $word == "$2"* ]]; then COMPREPLY+=("$word"); fi
    done < <("${{1/#\\~/$HOME}}" --complete -- "${{COMP_WORDS[@]:0:COMP_CWORD+1}}" 2>/dev/null)
}}
complete -o default -F _complete_{function} {name}
""",
    "zsh": """\
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
_complete_{function}() {{
    local -a found
    found=(${{(f)"$(${{~words[1]}} --complete -- "${{(@)words[1,CURRENT]}}" 2>/dev/null)"}})
    if (( $#found )); then compadd -a found; else _files; fi
}}
compdef _complete_{function} {name}
""",
    "fish": """\
function __complete_{function}
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] --complete -- $words 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c {name} -f -a '(__complete_{function})'
""",
}
SHELLS = tuple(_SCRIPTS)


def script(shell: str, name: str) -> str:
    """What a shell is to read for the completion of a program. Raises KeyError for another one."""
    return _SCRIPTS[shell].format(name=name, function=name.replace("-", "_"))


def candidates(
    words: Sequence[str], core: ParserContext, verbs: Mapping[str, ParserContext]
) -> list[str]:
    """What the last word can be; the others are those between it and the program's name.

    `core` are the options before the first verb. Nothing is said of values that are free.
    """
    if list(words[-1:]) in ([], ["="]):  # bash takes --cuda=13.0 for three words
        words = [*words, ""]
    *before, partial = [word for word in words if word != "="]
    context, waiting, free = _position(before, core, verbs)
    option, equals, _ = partial.partition("=")
    if waiting:
        found = _values(waiting, context, verbs)
    elif equals and option in context.flags:  # other shells take it for one
        name = str(context.flags[option].name)
        found = [f"{option}={value}" for value in _values(name, context, verbs)]
    elif context is core and not partial.startswith("-"):
        found = sorted(verbs)
    elif free and not partial.startswith("-"):
        found = _values(free[0], context, verbs)
    else:
        found = [flag for flag in context.flag_names() if flag.startswith("--")]
    return [word for word in found if word.startswith(partial)]


def _position(
    words: Sequence[str], core: ParserContext, verbs: Mapping[str, ParserContext]
) -> tuple[ParserContext, str, list[str]]:
    """Where words lead to: the options that may follow, and what takes the next word.

    That is the option that waits for its value, or "", and the positional arguments still missing.
    """
    context, waiting, free = core, "", list[str]()
    for word in words:
        name, equals, _ = word.partition("=")
        if waiting:
            waiting = ""
        elif word.startswith("-"):
            flag = context.flags.get(name) or core.flags.get(name)
            waiting = str(flag.name) if flag and flag.takes_value and not equals else ""
        elif word in verbs:
            context = verbs[word]
            free = [str(argument.name) for argument in context.positional_args]
        elif free:
            free.pop(0)
    return context, waiting, free


def _values(option: str, context: ParserContext, verbs: Mapping[str, ParserContext]) -> list[str]:
    """The values that an option or a positional argument can have; [] for free ones.

    `context` is the verb. An image can be built for all platforms, and a host has one.
    """
    from torch_images.cli.collection import axis_values
    from torch_images.config.matrix import matrix
    from torch_images.errors import TorchImagesError

    if option == "help":
        return sorted(verbs)
    if option == "image":
        try:
            return [spec.id for spec in matrix(verb.config())]
        except TorchImagesError:
            return []
    every = ["all"] if option == "arch" or (context.name, option) == ("build", "platform") else []
    return [*every, *axis_values([option]).get(option, ())]
