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
from collections.abc import Iterator, Mapping
from pathlib import Path

from marl_verl.errors import MarlError

TRAINERS = re.compile(r"(^|[./])main_(ppo|dapo)(\.py)?$")
"""Modules or files with the entry point that takes verl's PPO config."""
SECONDS = 30.0
LONGEST = 100_000
PATH = "/nonexistent"
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
    if (bash := shutil.which("bash")) is None:
        raise MarlError("bash is not on the path, which expands the variables of a script. Install it.")
    calls, errors = _calls(bash, text, script, environ)
    found = [arguments for call in calls if (arguments := _of_trainer(call)) is not None]
    if found:
        return found
    lines = [line.partition(": ")[2] for line in errors.splitlines() if line.strip()]
    if (unbound := re.search(r"line \d+: (\w+): (?:unbound variable|.*\1|parameter null)", errors)) is not None:
        raise MarlError(f"script '{script}' needs a value of {unbound[1]}: {unbound[1]}=... before the command")
    why = f" ({lines[-1][:200]})" if lines else ""
    raise MarlError(f"script '{script}' does not call verl.trainer.main_ppo{why}. Give the script that calls it.")


def _calls(bash: str, text: str, script: Path, environ: Mapping[str, str]) -> tuple[list[list[str]], str]:
    """(the commands that a script would run, its errors)."""
    plain = _REDIRECTION.sub(lambda found: found[0] if "((" in found[0] else " ", text)  # not `(( n > 8 ))`
    text = _SOURCE.sub("$0", _FIXED.sub(":", plain))
    env = {name: value for name, value in environ.items() if name not in ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS")}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "calls").open("w+b") as record:
        command = [bash, "-c", f"exec 3>&{record.fileno()}{PREAMBLE}{text}", str(script)]
        errors = Path(folder) / "errors"
        with errors.open("wb") as standard_error:
            process = subprocess.Popen(
                command,
                env={**env, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=standard_error,
                pass_fds=[record.fileno()],
                process_group=0,
            )
            try:
                process.wait(SECONDS)
                late = ""
            except subprocess.TimeoutExpired:
                late = f"script: it took longer than {SECONDS:g} s"
            finally:  # also what the script has put into the background
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        record.seek(0)
        return list(_records(record.read())), late or errors.read_text(encoding="utf-8", errors="replace")


def _records(data: bytes) -> Iterator[list[str]]:
    """Each recorded command: the number of its words, and the words, each ended by a NUL."""
    words = iter(data.decode("utf-8", "replace").split("\0")[:-1])
    for count in words:
        yield [next(words, "") for _ in range(int(count))]


def _of_trainer(command: list[str]) -> list[str] | None:
    """The arguments after the trainer's module in a command such as `ray job submit -- python3 -m MODULE ...`."""
    at = next((place for place, word in enumerate(command) if TRAINERS.search(word)), None)
    return None if at is None else [word for word in command[at + 1 :] if word.strip("\\ ")]
