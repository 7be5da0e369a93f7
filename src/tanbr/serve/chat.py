"""Conversations become prompts by a tokenizer's own template, which another process renders (`python -m` this module).

A template is a program that comes with a checkpoint: one that takes too much time or memory ends with its process.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tanbr.errors import CheckpointError, InputError
from tanbr.serve.records import ServiceError

SECONDS = 1  # of the processor for one conversation; an honest template takes about a millisecond
MEMORY = 1 << 30  # bytes of address space; the process itself has 150 MB
LONGEST = 1 << 22  # characters of a prompt: more than the tokens that any model reads


class ChatTemplate:
    """Makes prompts of conversations, one after another, in a thread of its own."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a tokenizer's template; no process is started before it is needed."""
        try:
            self._template = tokenizer.get_chat_template() if tokenizer.chat_template else None
        except ValueError:  # several templates, none of which is the default
            self._template = None
        self._special = tokenizer.special_tokens_map
        begin = tokenizer.bos_token
        adds = begin is not None and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
        self._added = begin if adds else ""  # what begins every text, where the tokenizer adds it by itself
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tanbr-chat")
        self._process: Any = None  # that renders

    def render(self, messages: Sequence[Mapping[str, Any]]) -> "Future[str]":
        """Make a prompt of roles, contents and calls of tools; never blocks. `developer` may become `system`.

        The future fails with an InputError if these messages are refused, a CheckpointError if the template is bad.
        """
        return self._thread.submit(self._rendered, list(messages))

    def close(self) -> None:
        """End the thread and the process."""
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _rendered(self, messages: list[Mapping[str, Any]]) -> str:
        if self._template is None:
            raise InputError(
                "this model has no chat template in its tokenizer; send a prompt to /v1/completions instead"
            )
        if "developer" not in self._template:
            messages = [one | {"role": "system"} if one["role"] == "developer" else one for one in map(dict, messages)]
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _started()
        asked = {"template": self._template, "messages": messages, "special": self._special}
        try:
            self._process.stdin.write(json.dumps(asked, default=str) + "\n")
            self._process.stdin.flush()
            said = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):  # no answer, or half of one: it has ended itself
            self._end()
            raise CheckpointError(f"the checkpoint's chat template did not finish within {SECONDS} s") from None
        if "prompt" in said:
            return str(said["prompt"]).removeprefix(self._added)
        if "refused" in said:
            raise InputError(f"the model's chat template refuses these messages ({said['refused']})")
        raise CheckpointError(f"the checkpoint's chat template {said['broken']}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _started() -> Any:
    """Start the process: with our modules, without our secrets, and out of reach of a terminal's Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        text=True,
    )
    if not process.stdout or not process.stdout.readline():  # which says that it is ready
        raise ServiceError("the process that renders chat templates does not start")
    return process


def _work() -> None:
    """Render what comes in, a line each, until nobody is there to read it; what takes too long ends the process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(flush=True)  # noqa: T201 - it is ready
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: a busy machine stops nobody
        try:
            rendered, _ = render_jinja_template(
                [asked["messages"]], chat_template=asked["template"], add_generation_prompt=True, **asked["special"]
            )
            too_long = f"made a prompt of more than {LONGEST} characters"
            said = {"broken": too_long} if len(rendered[0]) > LONGEST else {"prompt": rendered[0]}
        except MemoryError:
            said = {"broken": f"took more than {MEMORY >> 20} MiB of memory"}
        except Exception as error:  # a template raises what it likes: roles in a wrong order, for one
            said = {"refused": str(error)[:300]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    _work()
