"""The process that compares answers with math-verify, for `matcher`; run as a file.

It imports math-verify once, and forks a worker, which reads `["answer", "truth", seconds]` lines and writes `true` or
`false`. A timer kills a worker that needs longer: neither sympy nor a power of Python's integers can be interrupted
otherwise. Then `null` is written, and a new worker is forked, which takes milliseconds. Both end with their input.
"""

import functools
import json
import logging
import os
import resource
import signal
import sys

MEMORY = 4 << 30


def main() -> None:
    """Write "ready", then answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    logging.disable(logging.CRITICAL)  # math-verify warns that it has no time limit
    equal("1", r"\frac{1}{2}")  # imports everything that is imported late
    print('"ready"', flush=True)
    while True:
        worker = os.fork()
        if worker == 0:
            try:
                serve()
            finally:
                os._exit(0)
        _, status = os.waitpid(worker, 0)
        if not os.WIFSIGNALED(status):
            return
        print("null", flush=True)


def serve() -> None:
    """Answer requests, one at a time, until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(0, encoding="utf-8", closefd=False) as requests:
        for line in requests:
            answer, truth, seconds = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                found = equal(answer, truth)
            except Exception:  # noqa: BLE001 - math-verify raises anything on arbitrary text
                found = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps(found), flush=True)


def equal(answer: str, truth: str) -> bool:
    """Whether math-verify finds an answer equal to the truth."""
    from math_verify import verify

    return bool(verify(parsed(truth), parsed(answer), timeout_seconds=None))


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> list[object]:
    """math-verify's expressions of an answer. A percent sign is no part of a number: 50% is 50, not 0.5."""
    from math_verify import parse

    text = text.strip().rstrip(".").removesuffix("%").removesuffix("\\")
    return list(parse(f"\\boxed{{{text}}}", parsing_timeout=None))


if __name__ == "__main__":
    main()
    sys.exit(0)
