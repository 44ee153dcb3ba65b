"""The arguments that a shell script passes to verl's trainer, without running what it runs.

Bash itself expands variables, arrays, conditions and continuations, in its restricted mode, which opens no file for
writing and runs no command with a path; and no command is on its path. What the script would call is recorded instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from marl_verl.errors import MarlError

TRAINERS = re.compile(r"(^|[./])main_(ppo|dapo)(\.py)?$")
"""Modules or files with the entry point that takes verl's PPO config."""
SECONDS = 30.0
LONGEST = 100_000
PREAMBLE = r"""
trap '' PIPE  # of `python3 ... | tee`, whose tee ends at once
command_not_found_handle() {
  case "$*" in *main_ppo*|*main_dapo*) printf '%s\0' "$#" "$@" >&3;; esac  # only these: a pipeline's would mix
  case "$*" in *" -c "*npu*) return 1;; esac  # it looks for another device
}
cd() { :; }; pushd() { :; }; popd() { :; }; source() { :; }; .() { :; }; kill() { :; }; ulimit() { :; }
wait() { :; }; trap() { :; }
exec() { [ $# = 0 ] || { "$@"; exit; }; }
dirname() { case "$1" in */*) printf '%s\n' "${1%/*}";; *) printf '.\n';; esac; }
basename() { local name="${1##*/}"; printf '%s\n' "${name%"${2-}"}"; }
date() { printf '%(%Y%m%d_%H%M%S)T\n'; }; nproc() { printf '8\n'; }; whoami() { printf 'user\n'; }
hostname() { printf 'localhost\n'; }; realpath() { printf '%s\n' "${@: -1}"; }; readlink() { realpath "$@"; }
set -r
"""
_ARITHMETIC = r"\$?\(\((?:[^()]|\([^()]*\))*\)\)"
_REDIRECTION = re.compile(
    _ARITHMETIC
    + r"""|[ \t](?:&|[0-9])?>>?\|?[ \t]*(?:>\([^)]*\)|"[^"\n]*"|'[^'\n]*'|(?![&>(])[^\s;&|)"']+)(?![^\n]*\]\])"""
)
_FIXED = re.compile(r"^[ \t]*(?:export[ \t]+)?(?:PATH|SHELL|ENV|BASH_ENV)=.*$", re.MULTILINE)
_SOURCE = re.compile(r"\$\{BASH_SOURCE(?:\[0\])?(?::-[^}]*)?\}|\$BASH_SOURCE\b")


def trainer_arguments(script: Path, environ: Mapping[str, str] = os.environ) -> list[list[str]]:
    """The arguments of each call of verl's PPO trainer that a script makes, with the variables of `environ`.

    MarlError: the file cannot be read, a variable has no value, or it makes no such call (with its errors).
    """
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MarlError(f"script '{script}' cannot be read: {error}") from error
    if len(text) > LONGEST or "\0" in text:
        raise MarlError(f"'{script}' is no shell script of at most {LONGEST:,} characters")
    commands, errors = _run(text, script, environ)
    calls = []
    for command in commands:  # such as `ray job submit -- python3 -m MODULE ...`
        place = next((place for place, word in enumerate(command) if TRAINERS.search(word)), None)
        if place is not None:
            calls.append([word for word in command[place + 1 :] if word.strip("\\ ")])
    if calls:
        return calls
    lines = [line.partition(": ")[2] for line in errors.splitlines() if line.strip()]
    if (unbound := re.search(r"line \d+: (\w+): (?:unbound variable|.*\1|parameter null)", errors)) is not None:
        raise MarlError(f"script '{script}' needs a value of {unbound[1]}: {unbound[1]}=... before the command")
    why = f" ({lines[-1][:200]})" if lines else ""
    raise MarlError(f"script '{script}' does not call verl.trainer.main_ppo{why}. Give the script that calls it.")


def _run(text: str, script: Path, environ: Mapping[str, str]) -> tuple[list[list[str]], str]:
    """(the commands that a script would run, its errors)."""
    plain = _REDIRECTION.sub(lambda match: match[0] if "((" in match[0] else " ", text)  # not `(( n > 8 ))`
    text = _SOURCE.sub("$0", _FIXED.sub(":", plain))
    env = {name: value for name, value in environ.items() if name not in ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS")}
    with tempfile.TemporaryFile() as record, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [shutil.which("bash") or "bash", "-c", f"exec 3>&{record.fileno()}{PREAMBLE}{text}", str(script)],
            env={**env, "PATH": "/nonexistent"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[record.fileno()],
            process_group=0,
        )
        late = ""
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            late = f"script: it took longer than {SECONDS:g} s"
        finally:  # also what the script has put into the background
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        record.seek(0)
        errors.seek(0)
        # each command: the number of its words, and the words, each ended by a NUL
        words = iter(record.read().decode("utf-8", "replace").split("\0")[:-1])
        commands = [[next(words, "") for _ in range(int(count))] for count in words]
        return commands, late or errors.read().decode("utf-8", "replace")
