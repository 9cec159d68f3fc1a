"""Runs cases on a device and notes each result in a file at once. Run as a file, by `trial.py`, so as to crash or hang alone.

Cases are named `module:attribute`, a dict of names and functions of a device that return when all is right and raise when it is not.
Each line of the file is JSON: {"begun": name}, {"right": name}, {"wrong": name, "why": …}, {"unable": why} or {"ended": true}.
"""

import faulthandler
import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    """Read what to do from the one argument, JSON: path (of modules), cases, device, file, limit in seconds."""
    given = json.loads(sys.argv[1])
    sys.path[:] = given["path"]
    faulthandler.enable()  # says on stderr where it crashed
    # whoever started this may be gone by then
    faulthandler.dump_traceback_later(given["limit"], exit=True)
    with Path(given["file"]).open("a", encoding="utf-8") as file:

        def note(**line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            import torch

            module, _, attribute = given["cases"].partition(":")
            cases = getattr(importlib.import_module(module), attribute)
            torch.zeros(1, device=given["device"])  # another process may have the device to itself
        except Exception as error:
            note(unable=f"{type(error).__name__}: {error}")
            return
        for name, case in cases.items():
            note(begun=name)
            try:
                case(torch.device(given["device"]))
                note(right=name)
            except torch.OutOfMemoryError as error:  # says nothing of the code
                note(unable=f"{name}: {error}")
                return
            except Exception as error:
                note(wrong=name, why=f"{type(error).__name__}: {error}")
        note(ended=True)


if __name__ == "__main__":
    main()
