"""Which plain commands only read, and which options make a harmless-looking command write or run something."""

from __future__ import annotations

import re

from .shell_sed import sed_danger
from .shell_words import Simple, split_options

_NUMBER = r"-\d+|-[nc]\s*\+?\d*|--(lines|bytes)(=\+?-?\d+)?"
# These tables are compiled where they are used: all of them at every start would take 15 of its 400 ms.
# Command -> what its option words may look like. A command that is not here is not read-only.
READ_ONLY: dict[str, str] = {
    "ls": r"-[aAlhrtRSsd1FGgnopiCmxXkBbcqQuUvN]+|--(all|almost-all|human-readable|recursive|reverse|"
    r"directory|inode|size|color(=\w+)?|sort=\w+|time=\w+|group-directories-first)",
    "cat": r"-[AbEnsTuvet]+|--(number|number-nonblank|show-all|show-ends|show-tabs|squeeze-blank)",
    "head": _NUMBER + r"|-[qvz]+|--(quiet|silent|verbose)",
    "tail": _NUMBER + r"|-[qvz]+|--(quiet|silent|verbose)|\+\d+",
    "wc": r"-[clmwL]+|--(lines|words|bytes|chars|max-line-length)",
    "nl": r"-[bafvinwsd]+\w*",
    "pwd": r"-[LP]",
    "echo": r"-[neE]+",
    "true": r"(?!)",
    "false": r"(?!)",
    "whoami": r"(?!)",
    "id": r"-[ugGn]+",
    "uname": r"-[asnrvmpio]+",
    "which": r"-a",
    "basename": r"-[az]+|-s|--suffix=\S*",
    "dirname": r"-z",
    "realpath": r"-[emLPsqz]+",
    "readlink": r"-[femnqsvz]+",
    "stat": r"-[Lt]+|-c|--format=.*|--printf=.*|-f",
    "file": r"-[bihkLNprsvz0]+|--(brief|mime|mime-type|mime-encoding)",
    "du": r"-[aAbchHkLmsSx0]+|-d|-d\d+|--(max-depth=\d+|summarize|human-readable|apparent-size|total|all)",
    "df": r"-[ahHiklmPT]+",
    "grep": r"-[EFGPiwxcLlnoqshHvyabTzZrRU]+|-[ABCmde]|-[ABCm]\d+|-e.*|--(color(=\w+)?|include=.*|"
    r"exclude=.*|exclude-dir=.*|ignore-case|word-regexp|line-number|count|files-with-matches|"
    r"files-without-match|invert-match|only-matching|recursive|fixed-strings|extended-regexp|perl-regexp|"
    r"no-messages|with-filename|no-filename|max-count=\d+|(after-|before-)?context=\d+|binary-files=\w+|"
    r"text|regexp=.*)",
    "rg": r"-[iSswxvcloNnHIFPUauL0.]+|-[ABCmegtT]|-[ABCm]\d+|-[egtT].*|--(hidden|no-ignore|ignore-case|"
    r"smart-case|case-sensitive|word-regexp|line-number|no-line-number|count|files-with-matches|"
    r"files-without-match|files|fixed-strings|only-matching|heading|no-heading|with-filename|no-filename|"
    r"glob=.*|type=\w+|max-count=\d+|(after-|before-)?context=\d+|color=\w+|sort=\w+|multiline|stats|json|"
    r"max-depth=\d+|regexp=.*)",
    "sort": r"-[bdfghiMnRrVcCmsuz]+|-[kt].*|--(reverse|unique|numeric-sort|human-numeric-sort|version-sort|"
    r"ignore-case|field-separator=.*|key=.*)",
    "uniq": r"-[cdDuiz]+|-[fsw]\d*|--(count|repeated|unique|ignore-case)",
    "cut": r"-[bcfdsnz].*|--(fields|delimiter|characters|bytes|output-delimiter)=.*|--complement|"
    r"--only-delimited",
    "tr": r"-[cCdst]+",
    "diff": r"-[abBcdeiNnpqrstTuUwyE]+|-[UC]\d+|--(unified(=\d+)?|brief|recursive|side-by-side|"
    r"ignore-all-space|ignore-space-change|ignore-blank-lines|color(=\w+)?|stat)",
    "cmp": r"-[bls]+",
    "comm": r"-[123]+",
    "column": r"-[tx]+|-s.*|-c\d+",
    "tree": r"-[adfilpshugDFtrvcUCnLIPNqxJX]+|-L\d+|--(dirsfirst|noreport|prune|gitignore|filelimit=?\d*)",
    "find": r"-(name|iname|path|ipath|wholename|regex|iregex|type|maxdepth|mindepth|size|mtime|mmin|ctime|"
    r"cmin|atime|amin|newer|empty|not|o|a|or|and|print|print0|prune|perm|user|group|links|daystart|depth|"
    r"true|false|readable|executable|writable|xdev|mount|L|P|H|\d+[kMGcwb]?)",
    "sed": r"-[nErsuz]+|-e|--(quiet|silent|expression=.*|regexp-extended|null-data|separate|unbuffered|"
    r"posix|sandbox)",
    "cd": r"(?!)",
    "test": r"-\w+",
    "date": r"-[uRI]+|--(utc|iso-8601(=\w+)?|rfc-3339=\w+)",
    "md5sum": r"(?!)",
    "sha1sum": r"(?!)",
    "sha256sum": r"(?!)",
}
_LOG_OPTIONS = (
    r"-[pusnwbzgGiEFPcmMR]+|-\d+|-[UnSGLM]\d*.*|--(oneline|graph|stat(=\S+)?|shortstat|numstat|name-only|"
    r"name-status|all|decorate(=\w+)?|no-decorate|"
    r"patch|no-patch|raw|summary|abbrev-commit|abbrev=\d+|no-color|color(=\w+)?|reverse|merges|no-merges|"
    r"first-parent|follow|cached|staged|"
    r"word-diff(=\w+)?|unified=\d+|ignore-all-space|ignore-space-change|no-renames|find-renames(=\S+)?|"
    r"diff-filter=\w+|minimal|histogram|patience|"
    r"max-count=\d+|skip=\d+|since=.*|until=.*|after=.*|before=.*|author=.*|committer=.*|grep=.*|format=.*|"
    r"pretty(=.*)?|date=.*|branches|tags|"
    r"remotes|no-ext-diff|no-textconv|check|exit-code|quiet|full-index|relative(=.*)?|no-prefix|topo-order|"
    r"date-order|left-right|merge-base)"
)
GIT_READ_ONLY: dict[str, str] = {
    "status": r"-[sbuvz]+|-u\w+|--(short|branch|porcelain(=\w+)?|untracked-files(=\w+)?|ignored(=\w+)?|long|"
    r"verbose|show-stash|ahead-behind)",
    "log": _LOG_OPTIONS,
    "diff": _LOG_OPTIONS,
    "show": _LOG_OPTIONS,
    "shortlog": r"-[nsec]+",
    "blame": r"-[wlstfneCM]+|-L.*|--(line-porcelain|porcelain|date=\w+)",
    "rev-parse": r"--(abbrev-ref|short(=\d+)?|show-toplevel|verify|git-dir|is-inside-work-tree|show-prefix|"
    r"symbolic-full-name|quiet)",
    "ls-files": r"-[cdmoistuvz]+|--(cached|deleted|modified|others|stage|exclude-standard|full-name)",
    "ls-tree": r"-[drtlz]+|--(name-only|long|full-name|full-tree)",
    "describe": r"--(tags|always|dirty|long|abbrev=\d+|all)",
    "cat-file": r"-[tspe]",
    "merge-base": r"--(all|is-ancestor|fork-point)",
    "rev-list": r"--(count|all|max-count=\d+|left-right)|-\d+|-n",
}
# git subcommands that only read when they have no argument beyond these options
GIT_LISTING = {
    "branch": r"-[arv]+|--(all|remotes|list|verbose|show-current|merged|no-merged)",
    "tag": r"-[ln]+|--list",
    "remote": r"-v|--verbose",
    "stash": r"list",
    "worktree": r"list",
}

# Command -> options that write or run, whatever rule allows the command.
DANGEROUS: dict[str, str] = {
    "find": r"-(exec|execdir|ok|okdir|delete|fprint.*|fls|files0-from)",
    "fd": r"-[A-Za-z0]*[xX].*|--exec.*|--ex",
    "fdfind": r"-[A-Za-z0]*[xX].*|--exec.*|--ex",
    "sort": r"-[A-Za-z]*[oT].*|--o.*|--co.*|--te.*|--files0.*|--fi.*",
    "tree": r"-[A-Za-z]*o.*|--output.*|-R",
    "rg": r"--pre|--pre=.*|--hostname-bin.*|-[A-Za-z.]*z.*|--search-zip|--hyperlink.*",
    "ag": r"--pag.*|-[A-Za-z]*z.*",
    "ack": r"--pag.*|--ackrc.*|--output.*",
    "man": r"-[A-Za-z]*[PHCpE].*|--pa.*|--ht.*|--br.*|--co.*|--pre.*",
    "less": r".*",
    "more": r".*",
    "git": r"-c.*|--config.*|--exec.*|--ou.*|--ext.*|--textc.*|-O.*|--open.*|--upload.*|--receive.*|--rec.*|"
    r"--template.*|"
    r"--git-dir.*|--work-tree.*|-C.*|-x.*|--tool.*|--extc.*|--namespace.*|--super.*",
    "tar": r"--to-.*|--checkpoint-.*|-[A-Za-z]*I.*|--use.*|--rsh.*|--rmt.*|-[A-Za-z]*F.*|--info-.*|"
    r"--new-vol.*|--absolute.*|-[A-Za-z]*P.*",
    "zip": r"-.*T.*|--unzip.*|--test.*",
    "rsync": r"-[A-Za-z]*e.*|--rsh.*|--rsync-path.*|--daemon",
    "scp": r"-[A-Za-z]*[SoF].*",
    "curl": r"-[A-Za-z]*[oOKTJDc].*|--output.*|--remote.*|--config.*|--upload.*|--dump.*|--cookie-jar.*|"
    r"--trace.*|--libcurl.*|--stderr.*|--etag-save.*",
    "wget": r"-[A-Za-z]*[OoaePirE].*|--output.*|--append.*|--execute.*|--use-askpass.*|--config.*|"
    r"--directory.*|--post-file.*|--body-file.*|--save.*",
    "file": r"-[A-Za-z]*[CmS].*|--compile|--magic.*",
    "date": r"-[A-Za-z]*[sf].*|--se.*|--file.*",
    "yq": r"-[A-Za-z]*i.*|--in.*",
    "perl": r"-[A-Za-z]*[ieE].*",
    "ruby": r"-[A-Za-z]*[ie].*",
    "awk": r"-[A-Za-z]*[fiElL].*|--file.*|--include.*|--load.*|--exec.*|--inplace.*",
    "gawk": r"-[A-Za-z]*[fiElLdDop].*|--.*",
    "mawk": r"-[A-Za-z]*f.*|-W.*",
    "sed": r"-[nErsuzE]*[ifl].*|--i.*|--fi.*|--fo.*",
    "printf": r"-v.*",
    "xxd": r"-[A-Za-z]*r.*",
    "split": r"--filter.*",
    "ctags": r"--options.*|-L.*",
    "pytest": r"-[A-Za-z]*p.*|-c.*|--rootdir.*|--confcutdir.*|-o.*|--override.*",
    "gcc": r"-wrapper|-fplugin.*|-B.*|-specs.*",
    "dd": r"of=.*",
}
# Long options of such commands: they may be shortened as far as they stay unlike others.
DANGEROUS_LONG: dict[str, str] = {
    "git": "config config-env exec exec-path output output-directory ext-diff textconv open-files-in-pager upload-pack "
    "receive-pack template git-dir work-tree tool extcmd namespace super-prefix",
    "tar": "to-command checkpoint-action use-compress-program rsh-command rmt-command info-script new-volume-script "
    "absolute-names index-file volno-file",
    "sort": "output compress-program temporary-directory files0-from",
    "split": "filter",
    "wget": "output-document output-file append-output execute use-askpass config directory-prefix post-file body-file "
    "save-cookies save-headers",
    "curl": "output output-dir remote-name remote-name-all remote-header-name config upload-file dump-header "
    "cookie-jar trace trace-ascii trace-config libcurl stderr etag-save",
    "zip": "unzip-command test",
    "file": "compile magic-file",
    "date": "set file",
}
_WHOLE = frozenset({"text", "checkpoint", "tag"})  # options that one of those begins with
DANGEROUS_GIT = frozenset(
    [
        "bisect",
        "submodule",
        "filter-branch",
        "difftool",
        "mergetool",
        "config",
        "credential",
        "daemon",
        "fast-import",
        "send-email",
        "instaweb",
        "gui",
        "citool",
        "hook",
        "maintenance",
        "archive",
        "bundle",
        "format-patch",
        "update-ref",
        "update-index",
        "symbolic-ref",
        "replace",
        "notes",
        "clean",
        "remote-ext",
        "remote-fd",
        "merge-index",
        "interpret-trailers",
        "for-each-repo",
        "shell",
        "svn",
        "p4",
        "cvsimport",
    ]
)
_SUBSCRIPT = re.compile(r"\[.*[$`]", re.DOTALL)  # bash evaluates it: `test -v 'a[$(x)]'` runs x
_AWK_UNSAFE = re.compile(r"system|getline|[|>@]|close|fflush|ENVIRON|include|load")


def read_only(command: Simple) -> bool:
    """Does the command only read, by its name and every one of its options?"""
    if any(word.has_glob and word.raw[0] in "*?[" for word in command.words[1:]) and command.name != "echo":
        return False  # may expand to an option; the caller expands such words first
    name, rest = command.name, [word.text for word in command.words[1:]]
    if name == "git":
        return _git_read_only(rest)
    allowed = READ_ONLY.get(name)
    if allowed is None or danger(command) is not None:
        return False
    if name in ("echo", "test"):
        return True
    options, operands = split_options(rest)
    if name == "find":
        options, operands = [w for w in rest if w.startswith("-")], [w for w in rest if not w.startswith("-")]
    if name == "date" and any(not word.startswith("+") for word in operands):
        return False
    if name == "cd" and len(operands) != 1:
        return False
    return all(re.fullmatch(allowed, option) for option in options)


def _git_read_only(words: list[str]) -> bool:
    while words and words[0] in ("--no-pager", "-P", "--no-optional-locks"):
        words = words[1:]
    if not words:
        return False
    sub, rest = words[0], words[1:]
    if sub in GIT_LISTING:
        return all(re.fullmatch(GIT_LISTING[sub], word) for word in rest) and (
            sub not in ("stash", "worktree") or bool(rest)
        )
    allowed = GIT_READ_ONLY.get(sub)
    return allowed is not None and all(re.fullmatch(allowed, option) for option in split_options(rest)[0])


def danger(command: Simple) -> str | None:
    """The word that makes the command write or run something although it looks harmless; None when there is none."""
    name, words = command.name, [word.text for word in command.words[1:]]
    pattern = DANGEROUS.get(name)
    options = words if name in ("find", "dd", "tar") else split_options(words)[0]
    if pattern is not None:
        for word in options:
            if re.fullmatch(pattern, word, re.DOTALL):
                return word
    if (word := next((word for word in options if _is_shortened(name, word)), None)) is not None:
        return word
    if name == "tar" and words and re.fullmatch(r"[A-Za-z]*[IFP][A-Za-z]*", words[0]):
        return words[0]
    match name:
        case "uniq":
            operands = split_options(words)[1]
            return operands[1] if len(operands) > 1 else None
        case "sed":
            return sed_danger(words)
        case "test" | "[":
            return next((word for word in words if _SUBSCRIPT.search(word)), None)
        case "awk" | "gawk" | "mawk":
            return next((word for word in words if _AWK_UNSAFE.search(word)), None)
        case "git":
            sub = next((word for word in words if not word.startswith("-")), "")
            if sub == "clone" and (option := next((o for o in options if re.match(r"-[a-z]*u", o)), None)):
                return option  # the program that sends the files
            return sub if sub in DANGEROUS_GIT else None
        case _:
            return None


def _is_shortened(name: str, word: str) -> bool:
    """Is the word a dangerous long option of the command, or the beginning of one?"""
    option = word[2:].partition("=")[0] if word.startswith("--") else ""
    long = DANGEROUS_LONG.get(name, "") if option and option not in _WHOLE else ""
    return any(whole.startswith(option) for whole in long.split())
