"""Right programs pass; programs do not influence each other; an ordinary user gets what root gets."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from marl_verl_sandbox import Limits, Sandbox, pool, runs, template

from plugins.sandbox.tests.sandbox_attacks import ESCAPES
from plugins.sandbox.tests.sandbox_programs import PROGRAMS, STDIN
from plugins.sandbox.tests.test_sandbox_attacks import LONG, TIERS, left, prevented, targets, tiers

REPOSITORY = Path(__file__).parents[3]
# Read and change the memory, the input, the environment of other processes.
NEIGHBOURS = """
import os, re
for pid in {pids}:
    for name in range(40):
        try: os.pwrite(os.open(f"/proc/{{pid}}/fd/{{name}}", os.O_RDWR), b"changed", 0)
        except OSError: pass
    for name in ("environ", "mem", "maps", "cwd", "root"):
        try: file = os.open(f"/proc/{{pid}}/{{name}}", os.O_RDONLY)
        except OSError: continue
        print("ESCAPED", pid, name)
"""


def fails(tier: str) -> list[str]:
    """The right programs that do not pass."""
    box, names = Sandbox(tier), [name for name in PROGRAMS if tier == "isolated" or name[:2] != "I "]
    with ThreadPoolExecutor(runs.CORES) as threads:
        outcomes = list(threads.map(lambda name: box.prints(PROGRAMS[name], STDIN, "1", LONG), names))
    return [f"{name}: {outcome}" for name, outcome in zip(names, outcomes, strict=True) if not outcome.passed]


def influences(tier: str) -> list[str]:
    """What a program can do to the caller, a judge and programs that run beside it."""
    box, secret = Sandbox(tier), secrets.token_hex(8)
    waiting = "import time\ntime.sleep(2)\nprint(input())"
    test = f"assert candidate(2) == 1 or {secret!r}"
    function = "import time\ndef f(x):\n    time.sleep(x)\n    return 1"
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(runs, "at_once", threading.BoundedSemaphore(4))
        program = threads.submit(box.prints, waiting, secret, secret, LONG)
        judged = threads.submit(box.holds, function, "f", "", test, LONG)
        while len(pids := left(tier)) < 6:  # three programs, each with a guard
            assert not judged.done()
        output = box.run(NEIGHBOURS.format(pids=[*pids, os.getpid(), os.getppid()]), "", LONG)[1]
        return [output] * bool(output) + [str(item.result()) for item in (program, judged) if not item.result().passed]


@tiers
def test_right_programs_pass(tier: str) -> None:
    assert fails(tier) == []


@tiers
def test_programs_do_not_influence_each_other(tier: str) -> None:
    assert influences(tier) == []


def test_an_ordinary_user_gets_what_root_gets() -> None:
    code = "from plugins.sandbox.tests.test_sandbox_programs import as_a_user; as_a_user()"
    if not os.geteuid():  # in a mount namespace of its own, where folders above Python and the repository are open
        code = OPEN + code
    command = [sys.executable, "-c", code, sys.base_prefix, str(REPOSITORY), sys.prefix]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == {tier: [] for tier in TIERS}


OPEN = """
import os, sys, tempfile
from marl_verl_sandbox import kernel
if not os.geteuid():
    kernel.enter(kernel.MOUNTS, os.open("/proc", os.O_PATH))
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    for path in sys.argv[1:]:
        above = [path[:i] for i, c in enumerate(path) if c == "/" and i]
        closed = [folder for folder in above if not os.stat(folder).st_mode & 1]
        if closed:
            kept = tempfile.mkdtemp()
            kernel.mount(path, kept, None, kernel.BIND)
            kernel.mount("tmpfs", closed[0], "tmpfs", 0, "mode=755")
            os.makedirs(path)
            kernel.mount(kept, path, None, kernel.BIND)
            kernel.call("umount2", kept.encode(), kernel.DETACH)
            os.rmdir(kept)
    os.setgroups([])
    os.setresgid(4242, 4242, 4242)
    os.setresuid(4242, 4242, 4242)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
"""


def as_a_user() -> None:
    """Print what is wrong in each tier, for a user who has other processes."""
    wrong = {}
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            stack.callback(subprocess.Popen(["sleep", "300"], **quiet).kill)
        names = stack.enter_context(targets(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        for tier in TIERS:
            attacks = {name: ESCAPES[name].format(**names) for name in prevented(tier)}
            with ThreadPoolExecutor(runs.CORES) as threads:
                outputs = threads.map(lambda code, tier=tier: Sandbox(tier).run(code, "", LONG)[1], attacks.values())
                wrong[tier] = [name for name, output in zip(attacks, outputs, strict=True) if "ESCAPED" in output]
            wrong[tier] += fails(tier) + influences(tier)
    print(json.dumps(wrong))


def test_there_are_no_limits_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = pool.START.replace("template.main(", "template.kernel.landlock_version = lambda: 0\ntemplate.main(")
    monkeypatch.setattr(pool, "START", absent)
    monkeypatch.setattr(pool, "_templates", {})
    assert "its kernel has no Landlock" in runs.unavailable("limits")


def test_a_folder_is_removed_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    folder = tmp_path / "folder"
    (folder / "closed" / "closed").mkdir(parents=True)
    (folder / "closed" / "closed" / "file").touch()
    (folder / f".{os.getpid()}-1" / "a name that a program may guess").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "other")
    (folder / "closed" / "closed").chmod(0)
    (folder / "closed").chmod(0)
    descriptor = os.open(folder, os.O_RDONLY)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "other")
    template.remove(descriptor)
    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "other", "precious"]


@pytest.mark.skipif("isolated" not in TIERS, reason="this machine does not give the tier")
def test_what_is_mounted_in_the_library_is_read_only() -> None:
    inner = f"{os.path.dirname(os.__file__)}/json/__pycache__"
    code = "import os, sys\nfrom marl_verl_sandbox import Sandbox, kernel\n"
    code += "proc = os.open('/proc', os.O_PATH)\n"
    code += "kernel.enter(kernel.MOUNTS | (kernel.USER if os.geteuid() else 0), proc)\n"
    code += "kernel.mount('none', '/', None, kernel.RECURSIVE | kernel.PRIVATE)\n"
    code += f"kernel.mount('tmpfs', {inner!r}, 'tmpfs', 0, 'mode=777')\n"
    program = f"try: open({inner + '/x'!r}, 'w')\nexcept OSError as error: print(error.errno)"
    code += f"print(Sandbox('isolated').run({program!r})[1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "30", done  # EROFS


@tiers
def test_a_program_of_many_threads_becomes_nicer(tier: str) -> None:
    busy = "import threading, time, zlib\ndata = bytes(1 << 20)\ndef f():\n    while not done: zlib.crc32(data)\n"
    busy += "import os\nnice = lambda: os.getpriority(os.PRIO_PROCESS, 0)\ndone, first = [], nice()\n"
    busy += "for _ in range(8): threading.Thread(target=f).start()\n"
    busy += "while nice() < min(first + 5, 19): time.sleep(0.05)\ndone += [1]\nprint(True)"
    assert Sandbox(tier).prints(busy, "", "True", Limits(60)).passed


def test_a_program_of_too_many_threads_ends() -> None:
    many = "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(99,)).start()"
    assert Sandbox("limits").run(many, "", Limits(60))[0] == -9
