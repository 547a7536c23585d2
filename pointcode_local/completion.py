"""`pointcode completion bash|zsh|fish`: scripts made from the argument parsers, so that they never lag behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pointcode_local.forms import Argument, Form

SHELLS = ("bash", "zsh", "fish")
SESSIONS = "pointcode sessions list 2>/dev/null | cut -d' ' -f1"
MODELS = "pointcode model list 2>/dev/null | sed 's/^[* ]*//' | cut -d' ' -f1"


def script(shell: str, forms: Sequence[Form]) -> str:
    """The completion script of a shell; the first form is the program's without a command."""
    makers: dict[str, Callable[[Sequence[Form]], Iterable[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(makers[shell](forms)) + "\n"


def _commands(forms: Sequence[Form]) -> list[Form]:
    return [form for form in forms if form.name]


def _quoted(text: str) -> str:
    """A word in single quotes, for any of the shells' POSIX-like quoting."""
    return "'" + text.replace("'", "'\\''") + "'"


# ----------------------------------------------------------------------------------------------- bash
def _bash(forms: Sequence[Form]) -> Iterable[str]:
    names = "|".join(form.name for form in _commands(forms))
    valued = sorted({n for form in forms for o in form.options if o.value for n in o.names})
    yield "# bash completion of pointcode, made by: pointcode completion bash"
    yield f"_pointcode_sessions() {{ {SESSIONS}; }}"
    yield f"_pointcode_models() {{ {MODELS}; }}"
    yield "_pointcode() {"
    yield "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i n=0"
    yield "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi"
    yield "  for ((i = 1; i < COMP_CWORD; i++)); do"
    yield "    case ${COMP_WORDS[i]} in"
    yield f"      {'|'.join(valued)}) [[ ${{COMP_WORDS[i+1]}} == = ]] && ((i++)); ((i++)) ;;"
    yield "      -*) ;;"
    yield f"      {names}) if [[ -z $command ]]; then command=${{COMP_WORDS[i]}}; else ((n++)); fi ;;"
    yield "      *) if [[ -z $command ]]; then command=-; else ((n++)); fi ;;"
    yield "    esac"
    yield "  done"
    yield "  case $command:$prev in"
    for form in forms:
        for option in form.options:
            if option.value:
                places = "|".join(f"{form.name}:{name}" for name in option.names)
                yield f"    {places}) {_bash_value(option)}; return ;;"
    yield "  esac"
    yield "  if [[ $cur == -* ]]; then"
    yield "    case $command in"
    for form in forms:
        flags = " ".join(name for option in form.options for name in option.names)
        yield f'''    {form.name or '""|-'}) COMPREPLY=($(compgen -W "{flags}" -- "$cur")) ;;'''
    yield "    esac"
    yield "    return"
    yield "  fi"
    yield "  case $command:$n in"
    yield f'''    :*) COMPREPLY=($(compgen -W "{names.replace("|", " ")}" -- "$cur")) ;;'''
    for form in _commands(forms):
        for at, positional in enumerate(form.positionals):
            yield f"    {form.name}:{'*' if positional.repeats else at}) {_bash_value(positional)} ;;"
    yield "  esac"
    yield "}"
    yield "complete -o default -F _pointcode pointcode"


def _bash_value(argument: Argument) -> str:
    match argument.kind:
        case "choices":
            return f'COMPREPLY=($(compgen -W "{" ".join(argument.choices)}" -- "$cur"))'
        case "folder":
            return 'COMPREPLY=($(compgen -d -- "$cur"))'
        case "session":
            return 'COMPREPLY=($(compgen -W "$(_pointcode_sessions)" -- "$cur"))'
        case "model":
            return 'COMPREPLY=($(compgen -W "$(_pointcode_models)" -- "$cur") $(compgen -f -- "$cur"))'
        case _:
            return "COMPREPLY=()"


# ----------------------------------------------------------------------------------------------- zsh
def _zsh(forms: Sequence[Form]) -> Iterable[str]:
    names = "|".join(form.name for form in _commands(forms))
    yield "#compdef pointcode"
    yield "# zsh completion of pointcode, made by: pointcode completion zsh"
    for what, line in (("sessions", SESSIONS), ("models", MODELS)):
        yield f'_pointcode_{what}() {{ local -a found; found=(${{(f)"$({line})"}}); compadd -a found }}'
    yield "_pointcode_model() { _pointcode_models; _files }"
    yield "_pointcode() {"
    yield f"  local command=${{words[2,CURRENT-1][(r)({names})]}}"
    yield "  case $command in"
    for form in _commands(forms):
        yield f"    {form.name}) _arguments \\"
        yield from _zsh_arguments(form, [f"1:command:({form.name})"])
    yield "    *) _arguments \\"
    yield from _zsh_arguments(forms[0], [f"1:command:(({_zsh_commands(forms)}))"])
    yield "  esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _pointcode ]]; then _pointcode "$@"; else compdef _pointcode pointcode; fi'


def _zsh_commands(forms: Sequence[Form]) -> str:
    return " ".join(f"{form.name}\\:{_zsh_text(form.summary, 1)!r}" for form in _commands(forms))


def _zsh_arguments(form: Form, first: list[str]) -> Iterable[str]:
    specs = list(first)
    for option in form.options:
        for name in option.names:
            joined = "=" if option.value and name.startswith("--") else ""
            value = f":{_zsh_text(option.value)}:{_zsh_value(option)}" if option.value else ""
            specs.append(f"{name}{joined}[{_zsh_text(option.help)}]{value}")
    if form.name:
        for at, positional in enumerate(form.positionals, 2):
            specs.append(f"{'*' if positional.repeats else at}:{_zsh_text(positional.value)}:{_zsh_value(positional)}")
    for spec in specs[:-1]:
        yield f"      {_quoted(spec)} \\"
    yield f"      {_quoted(specs[-1])} ;;"


def _zsh_text(text: str, depth: int = 0) -> str:
    for character in "\\[]:":
        text = text.replace(character, "\\" + character)
    return text.replace("'", "").replace('"', "") if depth else text


def _zsh_value(argument: Argument) -> str:
    match argument.kind:
        case "choices":
            return f"({' '.join(argument.choices)})"
        case "folder":
            return "_files -/"
        case "session":
            return "_pointcode_sessions"
        case "model":
            return "_pointcode_model"
        case _:
            return " "


# ----------------------------------------------------------------------------------------------- fish
def _fish(forms: Sequence[Form]) -> Iterable[str]:
    names = " ".join(form.name for form in _commands(forms))
    yield "# fish completion of pointcode, made by: pointcode completion fish"
    yield f"function __pointcode_sessions; {SESSIONS}; end"
    yield f"function __pointcode_models; {MODELS}; end"
    yield "complete -c pointcode -f"
    for form in forms:
        seen = f"__fish_seen_subcommand_from {form.name}" if form.name else f"not __fish_seen_subcommand_from {names}"
        if form.name:
            none_yet = _fish_quoted(f"not __fish_seen_subcommand_from {names}")
            yield f"complete -c pointcode -n {none_yet} -a {form.name} -d {_fish_quoted(form.summary)}"
        for option in form.options:
            flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" {_fish_value(option)}" if option.value else ""
            yield f"complete -c pointcode -n {_fish_quoted(seen)} {flags}{value} -d {_fish_quoted(option.help)}"
        yield from _fish_positionals(form, seen) if form.name else ()


def _fish_positionals(form: Form, seen: str) -> Iterable[str]:
    before: list[str] = []
    for positional in form.positionals:
        if positional.kind:
            known = f"__fish_seen_subcommand_from {' '.join(before)}" if before else ""
            others = " ".join(choice for choice in positional.choices if choice != form.name)
            own = f"not __fish_seen_subcommand_from {others}" if others else ""
            when = "; and ".join(part for part in (seen, known, own) if part)
            yield f"complete -c pointcode -n {_fish_quoted(when)} {_fish_value(positional).removeprefix('-x ')}"
        before += positional.choices if not before else ()


def _fish_value(argument: Argument) -> str:
    match argument.kind:
        case "choices":
            return f"-x -a {_fish_quoted(' '.join(argument.choices))}"
        case "folder":
            return "-x -a '(__fish_complete_directories)'"
        case "session":
            return "-x -a '(__pointcode_sessions)'"
        case "model":
            return "-r -F -a '(__pointcode_models)'"
        case _:
            return "-x"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
