"""Runs many jobs: here one after another, on all cores, or on a Ray cluster.

Results come in the order of the jobs, whichever engine runs them, so the answer is the same.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, TypeVar

from scantling.errors import FieldError, UnknownNameError

Engine = Literal["here", "pool", "ray"]
ENGINES = ("here", "pool", "ray")
AHEAD = 2
"""Jobs that are handed out for each worker: one runs, the next waits, and memory stays bounded."""

Job = TypeVar("Job")
Result = TypeVar("Result")


def run(
    function: Callable[[Any, Job], Result], jobs: Iterable[Job], *, shared: Any = None,
    engine: str = "here", workers: int | None = None,
) -> Iterator[Result]:  # fmt: skip
    """The results of a function for each job, in the order of the jobs, as they come.

    Closing the iterator stops what still runs: break out of the loop, or an interrupt.

    Args:
        function: From (shared, job) to a result. Other processes import it by name, so it is a
            function of a module, and a script that asks for them guards its main part.
        jobs: What to do; made as they are handed out.
        shared: What every job needs; it travels once to each worker.
        engine: ``here``, ``pool`` (processes of this machine) or ``ray`` (its cluster, or one that
            is started here; extra ``ray``).
        workers: Processes; all cores unless given.

    Raises:
        UnknownNameError: If the engine is unknown.
        FieldError: If Ray is not installed.

    Example:
        >>> import operator
        >>> list(run(operator.add, [1, 2, 3], shared=10))
        [11, 12, 13]
    """
    check(engine, workers)
    if engine == "ray":
        return _on_ray(function, jobs, shared, workers)
    if engine == "pool":
        return _on_pool(function, jobs, shared, workers)
    return (function(shared, job) for job in jobs)


def check(engine: str, workers: int | None = None) -> None:
    """Check that an engine exists and has workers.

    Raises:
        UnknownNameError: If it does not.
        FieldError: If it has none.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise FieldError("workers", workers, "must be at least 1")


def cores() -> int:
    """Cores this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_held: list[Any] = []
"""In a worker process: the function and what its jobs share."""


def _begin(function: Any, shared: Any) -> None:
    """A worker starts; an interrupt is for the process that waits for it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _held[:] = [function, shared]


def _do(job: Any) -> Any:
    function, shared = _held
    return function(shared, job)


def _on_pool(function: Any, jobs: Iterable[Any], shared: Any, workers: int | None) -> Iterator[Any]:
    """Processes that start afresh: a fork would copy locks that threads of this one hold."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    n = workers or cores()
    pool = ProcessPoolExecutor(n, get_context("spawn"), _begin, (function, shared))
    try:
        yield from _in_order(lambda job: pool.submit(_do, job), lambda f: f.result(), jobs, n)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _on_ray(function: Any, jobs: Iterable[Any], shared: Any, workers: int | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError:
        raise FieldError(
            "engine", "ray", "is not installed", "pip install 'scantling[ray]', or use pool"
        ) from None
    own = not ray.is_initialized()
    if own:  # an address in RAY_ADDRESS is a cluster, whose size is its own
        known = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers or cores()}
        ray.init(log_to_driver=False, include_dashboard=False, **known)
    try:
        task, sent = ray.remote(function), ray.put(shared)
        n = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield from _in_order(lambda job: task.remote(sent, job), ray.get, jobs, n)
    finally:
        if own:
            ray.shutdown()


def _in_order(
    start: Callable[[Any], Any], result: Callable[[Any], Any], jobs: Iterable[Any], workers: int
) -> Iterator[Any]:
    """Hand out a few jobs ahead, and take results in order."""
    left = iter(jobs)
    running = deque(start(job) for job in islice(left, AHEAD * workers))
    while running:
        yield result(running.popleft())
        running.extend(start(job) for job in islice(left, 1))


__all__ = ["ENGINES", "check", "cores", "run"]
