"""Runs many jobs: here one after another, on all cores, on a Ray cluster, or under Slurm.

Results come in the order of the jobs, whichever engine runs them, so the answer is the same.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from scantling.errors import FieldError, ScantlingError, UnknownNameError

Engine = Literal["here", "pool", "ray", "slurm"]
ENGINES = ("here", "pool", "ray", "slurm")
AHEAD = 2
"""Jobs that are handed out for each worker: one runs, the next waits, and memory stays bounded."""
TRIES = 3
"""Times a job is begun before it is given up, where the worker that runs it dies."""
SLURM_LOGS = Path("scantling-slurm")
"""Where jobs under Slurm leave what they print; on a disk that all nodes share."""

Job = TypeVar("Job")
Result = TypeVar("Result")


class LostWorkerError(ScantlingError):
    """The process that ran a job died every time, killed or out of memory."""


def run(
    function: Callable[[Any, Job], Result], jobs: Iterable[Job], *, shared: Any = None,
    engine: str = "here", workers: int | None = None, ahead: int = AHEAD,
    lost: Callable[[Job], Result] | None = None,
) -> Iterator[Result]:  # fmt: skip
    """The results of a function for each job, in the order of the jobs, as they come.

    Closing the iterator stops what still runs: break out of the loop, or an interrupt. A job whose
    worker dies is begun again, ``TRIES`` times in all; errors that it raises are the caller's.

    Args:
        function: From (shared, job) to a result. Other processes import it by name, so it is a
            function of a module, and a script that asks for them guards its main part.
        jobs: What to do; made as they are handed out.
        shared: What every job needs; it travels once to each worker.
        engine: ``here``, ``pool`` (processes of this machine), ``ray`` (its cluster, or one that
            is started here; extra ``ray``) or ``slurm`` (each job one of Slurm's, by submitit;
            processes of this machine where there is no Slurm; extra ``slurm``).
        workers: Processes; all cores unless given.
        ahead: Jobs handed out for each worker; 1 for few long ones.
        lost: What stands for the result of a job whose workers all died.

    Raises:
        UnknownNameError: If the engine is unknown.
        FieldError: If what the engine needs is not installed.
        LostWorkerError: If a job is lost and nothing stands for it.

    Example:
        >>> import operator
        >>> list(run(operator.add, [1, 2, 3], shared=10))
        [11, 12, 13]
    """
    check(engine, workers)
    if engine == "here":
        return (function(shared, job) for job in jobs)
    engines = {"pool": _on_pool, "ray": _on_ray, "slurm": _under_slurm}
    return engines[engine](function, jobs, shared, workers or 0, ahead, lost or _raise)


def _raise(job: Any) -> Any:
    raise LostWorkerError(f"the worker of a job died {TRIES} times, killed or out of memory: {job}")


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


def places(engine: str, workers: int | None, jobs: int) -> int:
    """Jobs that an engine runs at once: a cluster as many as there are, this machine its cores.

    Example:
        >>> places("here", None, 4), places("slurm", None, 40), places("pool", 3, 40)
        (1, 40, 3)
    """
    if engine == "here":
        return 1
    elsewhere = engine == "slurm" or (engine == "ray" and "RAY_ADDRESS" in os.environ)
    return workers or (jobs if elsewhere else cores())


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
    """A worker starts; an interrupt is for the process that waits for it, which it dies with."""
    import signal
    from multiprocessing import parent_process
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _held[:] = [function, shared]
    parent = parent_process()
    assert parent is not None, "a worker has been started"
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _do(job: Any) -> Any:
    function, shared = _held
    return function(shared, job)


class _Handed:
    """A job that was handed out, and what becomes of it."""

    def __init__(self, job: Any) -> None:
        self.job, self.begun = job, 0
        self.future: Any = None

    @property
    def broken(self) -> bool:
        """Whether its worker died."""
        from concurrent.futures.process import BrokenProcessPool

        return self.future.done() and isinstance(self.future.exception(), BrokenProcessPool)

    @property
    def done(self) -> bool:
        """Whether it has a result, an error of its own, or is given up."""
        return self.future.done() and (not self.broken or self.begun >= TRIES)


class _Slot:
    """One process that starts afresh: a fork would copy locks that threads of this one hold.

    A pool for each process, so that a death says which job it took along.
    """

    def __init__(self, function: Any, shared: Any) -> None:
        self.held = (function, shared)
        self.waiting: deque[_Handed] = deque()
        self.start()

    def start(self) -> None:
        """A new process, when the first job comes."""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, self.held)

    def hand(self, one: _Handed) -> _Handed:
        """Give it a job, behind those it has."""
        from concurrent.futures.process import BrokenProcessPool

        try:
            one.future = self.pool.submit(_do, one.job)
        except BrokenProcessPool:  # it died with nothing to do
            self.start()
            one.future = self.pool.submit(_do, one.job)
        self.waiting.append(one)
        return one

    def settle(self) -> None:
        """Forget what is done; after a death begin again what waited, the job that ran first."""
        if any(one.broken for one in self.waiting):
            self.pool.shutdown(wait=True)  # then every job of it is known to be broken
            lost = [one for one in self.waiting if one.broken]
            lost[0].begun += 1
            self.waiting.clear()
            self.start()
            for one in lost:
                if not one.done:
                    self.hand(one)
        self.waiting = deque(one for one in self.waiting if not one.done)

    def stop(self) -> None:
        """End the process, whatever it does."""
        processes = list((self.pool._processes or {}).values())  # noqa: SLF001 - public from 3.14
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self.waiting:
            for process in processes:
                process.terminate()
        for process in processes:
            process.join()


def _on_pool(
    function: Any, jobs: Iterable[Any], shared: Any, workers: int, ahead: int, lost: Any
) -> Iterator[Any]:
    from concurrent.futures import FIRST_COMPLETED, wait

    left, order = iter(jobs), deque[_Handed]()
    slots = [_Slot(function, shared) for _ in range(workers or cores())]
    most = 4 * ahead * len(slots)  # results that wait for an earlier one
    try:
        while True:
            for slot in slots:
                slot.settle()
            for depth in range(ahead):
                for slot in (s for s in slots if len(s.waiting) == depth and len(order) < most):
                    order.extend(slot.hand(_Handed(job)) for job in islice(left, 1))
            if not order:
                return
            if order[0].done:
                first = order.popleft()
                yield lost(first.job) if first.broken else first.future.result()
            else:
                wait([w.future for s in slots for w in s.waiting], return_when=FIRST_COMPLETED)
    finally:
        for slot in slots:
            slot.stop()


def _on_ray(
    function: Any, jobs: Iterable[Any], shared: Any, workers: int, ahead: int, lost: Any
) -> Iterator[Any]:
    from logging import WARNING

    try:
        import ray
    except ImportError:
        raise FieldError(
            "engine", "ray", "is not installed", "pip install 'scantling[ray]', or use pool"
        ) from None
    own = not ray.is_initialized()
    if own:  # an address in RAY_ADDRESS is a cluster, whose size is its own
        known = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers or cores()}
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=WARNING, **known)

    def result(one: _Handed) -> Any:
        try:
            return ray.get(one.future)
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            return lost(one.job)

    try:
        task, sent = ray.remote(max_retries=TRIES - 1)(function), ray.put(shared)
        n = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield from _in_order(partial(task.remote, sent), result, partial(ray.cancel, force=True),
                             jobs, n * ahead)  # fmt: skip
    finally:
        if own:
            ray.shutdown()


def _under_slurm(
    function: Any, jobs: Iterable[Any], shared: Any, workers: int,
    ahead: int,  # noqa: ARG001 - what waits, waits in Slurm's queue
    lost: Any,
) -> Iterator[Any]:  # fmt: skip
    try:
        import submitit
    except ImportError:
        raise FieldError(
            "engine", "slurm", "is not installed", "pip install 'scantling[slurm]', or use pool"
        ) from None
    nodes = submitit.AutoExecutor(folder=SLURM_LOGS / "%j")
    nodes.update_parameters(cpus_per_task=1, timeout_min=24 * 60, name="scantling")
    start = partial(nodes.submit, _tried, function, shared)

    def result(one: _Handed) -> Any:
        while True:
            try:
                value, error = one.future.result()
            except submitit.core.utils.FailedJobError:  # it raised an error of its own
                raise
            except submitit.core.utils.UncompletedJobError:  # it died
                one.begun += 1
                if one.begun == TRIES:
                    return lost(one.job)
                one.future = start(one.job)
                continue
            if error is not None:
                raise error
            return value

    yield from _in_order(start, result, lambda running: running.cancel(check=False), jobs,
                         workers or cores())  # fmt: skip


def _tried(function: Any, shared: Any, job: Any) -> tuple[Any, ScantlingError | None]:
    """A result, or an error for users, which Slurm's side would turn into a traceback."""
    try:
        return function(shared, job), None
    except ScantlingError as error:
        return None, error


def _in_order(
    start: Callable[[Any], Any], result: Callable[[_Handed], Any], stop: Callable[[Any], Any],
    jobs: Iterable[Any], ahead: int,
) -> Iterator[Any]:  # fmt: skip
    """Hand out a few jobs ahead, and take results in order; stop what runs where that ends."""
    left, running = iter(jobs), deque[_Handed]()

    def hand(n: int) -> None:
        for job in islice(left, n):
            running.append(_Handed(job))
            running[-1].future = start(job)

    try:
        hand(ahead)
        while running:
            found = result(running[0])
            running.popleft()
            yield found
            hand(1)
    finally:
        for one in running:
            if one.future is not None:
                stop(one.future)


__all__ = ["ENGINES", "LostWorkerError", "check", "cores", "run"]
