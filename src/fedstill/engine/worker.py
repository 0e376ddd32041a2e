"""A worker process of the embedded engine: a line of JSON in, a line of JSON out, tensors through files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedstill.core.allocator import keep_freed_memory


def ready() -> None:
    """Import what every worker needs."""
    # slow: they import torch
    import fedstill.algorithms
    import fedstill.engine.jobs
    import fedstill.engine.turn  # noqa: F401


def main() -> None:
    """Serve one parent until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output printed by a library must not be taken for an answer
    hello = json.loads(sys.stdin.buffer.readline())

    # slow: imported after the greeting is read, so that the parent does not wait for torch
    import torch

    from fedstill.algorithms import create
    from fedstill.config.tables import Config
    from fedstill.core.errors import reason_of
    from fedstill.core.files import naming
    from fedstill.core.message import Message
    from fedstill.core.registry import import_plugged
    from fedstill.engine.jobs import mapped
    from fedstill.engine.memory import Memory
    from fedstill.engine.turn import client_turn
    from fedstill.task import Task

    keep_freed_memory()
    if hello["threads"]:
        torch.set_num_threads(hello["threads"])
    import_plugged(hello["plugins"])
    algorithm = create(Task(Config.model_validate(hello["config"])))
    memory = Memory(Path(hello["folder"]))
    load = lru_cache(maxsize=1)(Message.load)  # most systems send all clients of a round the same
    for line in sys.stdin.buffer:
        job = json.loads(line)
        try:
            clock = time.perf_counter()
            if "function" in job:  # the server's work
                message = Message.load(Path(job["message"]))
                module, _, name = job["function"].partition(":")
                shared = {key: mapped(about) for key, about in job["shared"].items()}
                reply = getattr(import_module(module), name)(algorithm.task, message.with_parts(**job["values"]), shared)
            else:
                reply = client_turn(algorithm, job["client"], job["round"], job["phase"], load(Path(job["message"])), memory)
            with naming(Path(job["reply"])):
                reply.write(Path(job["reply"]))
            answer: dict[str, Any] = {"nbytes": reply.nbytes, "seconds": time.perf_counter() - clock}
        except Exception as error:  # reported to the parent, which drops this reply with the reason
            traceback.print_exc()
            answer = {"error": reason_of(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
