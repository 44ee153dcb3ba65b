"""The process of a check: `python -m marl_verl_diagnose.selftest.child TARGET NAME FOLDER GPUS`; work/NAME.json."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import traceback
from pathlib import Path

from marl_verl.config.hardware import has_accelerator
from marl_verl.errors import RunError, format_error
from marl_verl_diagnose.selftest import CriterionError, Figures, Place, SkippedError

LINES = 60  # of the log of a run that failed


def main(target: str, name: str, folder: str, gpus: str) -> int:
    # as Ctrl-C, so that a run ends its processes; also where the shell has started us with SIGINT ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place, figures = Place(Path(folder), int(gpus), has_accelerator()), Figures()
    module, _, function = target.partition(":")
    state, message = "passed", ""
    try:
        getattr(importlib.import_module(module), function)(place, figures)
    except SkippedError as error:
        state, message = "skipped", str(error)
    except CriterionError as error:
        state, message = "failed", str(error)
    except Exception as error:  # noqa: BLE001 - whatever fails is the result of the check
        state, message = "failed", format_error(error)
        traceback.print_exc()
        if isinstance(error, RunError) and error.log.is_file():
            print(*error.log.read_text(errors="replace").splitlines()[-LINES:], sep="\n")
    document = {"state": state, "message": message, "figures": figures}
    (place.work / f"{name}.json").write_text(json.dumps(document, default=float), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
