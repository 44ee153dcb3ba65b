"""The process of `limited`; run as a file, with the path of the file that has `answer`, and `warm` if it wants.

It forks a worker, which reads `[seconds, ...]` lines and writes the value of `answer(...)`. A timer of processor time
(a busy machine is no reason for another answer) kills a worker that needs longer: neither SymPy nor a power of
Python's integers can be interrupted otherwise. Then `null` is written, and a new worker is forked, which takes
milliseconds. Both end with their input.
"""

import json
import logging
import os
import resource
import runpy
import signal
import sys

MEMORY = 4 << 30


def main() -> None:
    """Write "ready", then answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    logging.disable(logging.CRITICAL)
    names = runpy.run_path(sys.argv[1])
    names.get("warm", lambda: None)()
    print('"ready"', flush=True)
    while True:
        worker = os.fork()
        if worker == 0:
            try:
                serve(names["answer"])
            finally:
                os._exit(0)
        _, status = os.waitpid(worker, 0)
        if not os.WIFSIGNALED(status):
            return
        print("null", flush=True)


def serve(answer) -> None:  # type: ignore[no-untyped-def]
    """Answer requests, one at a time, until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(0, encoding="utf-8", closefd=False) as requests:
        for line in requests:
            seconds, *arguments = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                value = answer(*arguments)
            except Exception:  # noqa: BLE001 - libraries raise anything on arbitrary text
                value = None
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
