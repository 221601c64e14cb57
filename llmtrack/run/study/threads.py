"""Run jobs in threads, and make their callbacks in the calling thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

Calls = queue.SimpleQueue["partial[None]"]
"""Calls that jobs request from the calling thread."""


def run_in_threads(
    jobs: Sequence[Callable[[], None]], threads: int, calls: Calls, stop: Callable[[], None], flush: bool = False
) -> None:
    """Run jobs in threads, and make their calls in this one, until all jobs have ended.

    A signal, or an error of a job or a call, stops all.

    Args:
        threads: maximum number of concurrent jobs.
        calls: filled by the jobs.
        stop: end the running jobs; waiting ones do not start.
        flush: also make the calls that are pending when stopped.
    """
    running = len(jobs)

    def ended(future: Future[None]) -> None:
        nonlocal running
        running -= 1
        future.result()

    with ThreadPoolExecutor(threads, "llmtrack-study") as pool:
        try:
            for job in jobs:
                pool.submit(job).add_done_callback(lambda future: calls.put(partial(ended, future)))
            while running:
                calls.get()()
        except BaseException:
            stop()
            pool.shutdown(cancel_futures=True)
            while flush and not calls.empty():
                call = calls.get()
                if call.func is not ended:
                    call()
            raise
