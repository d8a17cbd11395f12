"""Read by each Python that the tests start. One that has vLLM starts with a third of the work, 5 s of CPU, not 14.

Nearly all of a start is imports. They make so many objects that a fifth of it is the search for garbage among them; and
on a CPU, alone of all machines, vLLM has each of its processes import everything anew rather than fork. One that is
forked would look three times through all that it was left with, and so copy it.
"""

import gc
import os
from importlib.util import find_spec

if find_spec("vllm") is not None:
    from multiprocessing import context

    gc.set_threshold(50_000, 50, 50)
    os.register_at_fork(before=gc.freeze)
    context._concrete_contexts["spawn"] = context._concrete_contexts["fork"]  # type: ignore[attr-defined]
