"""Tier `external`: programs run on a Sandbox Fusion server, by verl's client.

Uses verl internals: `verl.utils.reward_score.sandbox_fusion.utils.call_sandbox_api` and the fields of its answer.
"""

import inspect
import json
import logging
import math
from typing import Any

from marl_verl_sandbox import candidate, values
from marl_verl_sandbox.pool import Limits, SandboxError

# One call of a function. What the program prints goes to the error output; the last line of the output is the answer.
CALL = """
import json, os, sys, types
from typing import Any
out = os.dup(1)
os.dup2(2, 1)
request = json.loads(sys.stdin.read())
values = types.ModuleType("values")
exec(request["values"], values.__dict__)
exec(request["function_of"] + request["raised"])
try:
    names = {"__name__": "program"}
    exec(compile(request["program"], "program.py", "exec", dont_inherit=True), names)
    function = function_of(names, request["entry"])
    value = None
    if request["call"] is not None:
        arguments, named = values.from_json(request["call"].encode())
        value = function(*arguments, **named)
    answer = values.to_json(["value", value])
except BaseException as error:
    answer = values.to_json(raised(error))
os.write(out, b"\\n" + answer)
"""


def run(url: str, program: str, stdin: str, limits: Limits) -> tuple[int | None, str, str]:
    """Run a program; return (exit code or None if its time was over, output, error output). SandboxError: the server
    cannot be reached, or failed."""
    from verl.utils.reward_score.sandbox_fusion.utils import call_sandbox_api  # here: importing verl takes seconds

    logging.getLogger(call_sandbox_api.__module__).setLevel(logging.CRITICAL)  # SandboxError has what it would log
    seconds = math.ceil(limits.seconds)
    answer, error = call_sandbox_api(url, program, stdin, seconds, seconds, limits.megabytes, "python")
    result: Any = (answer or {}).get("run_result")
    if error or answer is None or answer.get("status") == "SandboxError" or not isinstance(result, dict):
        said = error or (answer or {}).get("message") or json.dumps(answer)
        raise SandboxError(f"the sandbox server at '{url}' failed: {said:.200}")
    code = None if result.get("status") == "TimeLimitExceeded" else int(result.get("return_code") or 0)
    if code == 0 and result.get("status") != "Finished":
        code = 1
    return code, str(result.get("stdout") or ""), str(result.get("stderr") or "")


class ExternalSession:
    """A program's function on the server: every call runs the whole program again."""

    def __init__(self, url: str, program: str, entry: str, limits: Limits) -> None:
        self._url, self._limits = url, limits
        self._request = {"program": program, "entry": entry, "values": inspect.getsource(values)}
        self._request |= {name: inspect.getsource(getattr(candidate, name)) for name in ("function_of", "raised")}

    def ask(self, message: bytes | None = None) -> bytes | None:
        """As `pool.Process.ask`."""
        stdin = json.dumps({**self._request, "call": message and message.decode()})
        code, out, _ = run(self._url, CALL, stdin, self._limits)
        if code is None:
            raise TimeoutError
        return out.rstrip().rpartition("\n")[2].encode() or None

    def end(self) -> tuple[int, str, str]:
        """As `pool.Process.end`."""
        return 1, "", ""
