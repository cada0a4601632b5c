"""Jobs give the same results, in the same order, wherever they run."""

import multiprocessing
import operator
import os
import pathlib
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from scantling.errors import FieldError, UnknownNameError
from scantling.executor import TRIES, LostWorkerError, check, cores, run
from scantling.search import Range, budget
from scantling.search.space import space
from scantling.search.sweep import sweep

NARROW = {
    "params": 20_000_000, "vocab_size": 8192, "multiple": 64,
    "bounded": {"d_model": Range(256, 640), "n_layer": Range(4, 24)},
}  # fmt: skip
"""Some thousands of shapes, swept here in parts of 50."""


def process(shared, job):
    return shared, job, os.getpid()


@pytest.mark.parametrize("engine", ["here", "pool"])
def test_results_come_in_the_order_of_the_jobs(engine):
    found = list(run(operator.add, list(range(40)), shared=100, engine=engine, workers=2))
    assert found == [100 + job for job in range(40)]


def test_a_pool_runs_in_other_processes():
    found = list(run(process, [1, 2, 3, 4], shared="all", engine="pool", workers=2))
    assert [(shared, job) for shared, job, _ in found] == [("all", n) for n in (1, 2, 3, 4)]
    assert os.getpid() not in {pid for *_, pid in found}


def test_here_is_this_process_and_a_job_runs_when_it_is_asked_for():
    results = run(process, [1, 2], engine="here")
    assert next(results)[2] == os.getpid()


def test_an_error_of_a_job_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        list(run(operator.floordiv, [1, 0], shared=1, engine="pool", workers=2))


def check_engine(_, job):
    check(job)


def test_an_error_for_users_arrives_from_a_worker_as_it_was_raised():
    with pytest.raises(UnknownNameError, match=r"^engine pol is not known; did you mean pool\?$"):
        list(run(check_engine, ["pool", "pol"], engine="pool", workers=1))


@pytest.mark.parametrize(("given", "error"), [({"engine": "dask"}, UnknownNameError),
                                              ({"workers": 0}, FieldError)])  # fmt: skip
def test_an_engine_that_is_not_there_is_an_error_in_one_line(given, error):
    with pytest.raises(error) as caught:
        run(operator.add, [1], **given)
    assert "\n" not in str(caught.value)


def die_once(marks, job):
    """The first process that gets job 2 ends as by ``kill -9``."""
    mark = marks / str(job)
    if job == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def die(shared, job):
    """Whoever runs job 2 dies, and the test counts how often."""
    if job == 2:
        with (shared / "deaths").open("a") as sink:
            sink.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return job


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_job_of_a_worker_that_dies_is_run_again(tmp_path, ahead):
    found = run(die_once, range(6), shared=tmp_path, engine="pool", workers=2, ahead=ahead)
    assert list(found) == list(range(6))


def test_a_job_that_kills_every_worker_is_reported_and_takes_no_other_along(tmp_path):
    found = run(die, range(6), shared=tmp_path, engine="pool", workers=2, lost=str)
    assert list(found) == [0, 1, "2", 3, 4, 5]
    assert (tmp_path / "deaths").read_text() == "x" * TRIES


def test_a_lost_job_that_nothing_stands_for_is_an_error_in_one_line(tmp_path):
    with pytest.raises(LostWorkerError, match=r"died 3 times, killed or out of memory: 2"):
        list(run(die, range(6), shared=tmp_path, engine="pool", workers=2))


def sleep_long(_, job):
    if job:
        time.sleep(600)
    return os.getpid()


def test_closing_the_results_ends_what_still_runs():
    results = run(sleep_long, range(4), engine="pool", workers=2)
    next(results)
    results.close()
    assert not multiprocessing.active_children()


def test_slurm_runs_jobs_on_this_machine_where_there_is_none(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    )
    found = run(die_once, range(4), shared=tmp_path, engine="slurm", workers=2)
    assert list(found) == list(range(4))


# ---------------------------------------------------------------- clusters that are not here


class DiedError(Exception):
    """As submitit says that a job died."""


class FailedError(DiedError):
    """As it says that a job raised an error."""


class Cluster:
    """Stands for Slurm and for Ray: a job runs when its result is asked for."""

    def __init__(self):
        self.began, self.awaited, self.stopped = [], [], []

    def submit(self, call, *given):
        self.began.append(given[-1])
        return Submitted(self, call, given)

    def update_parameters(self, **_):
        pass

    def cancel(self, running, *, force):
        assert force
        self.stopped.append(running.job)


class Submitted:
    def __init__(self, cluster, call, given):
        self.cluster, self.call, self.given, self.job = cluster, call, given, given[-1]

    def result(self):
        self.cluster.awaited.append(self.job)
        if self.job == "deadly":
            raise DiedError
        return self.call(*self.given)

    def cancel(self, *, check):
        assert not check
        self.cluster.stopped.append(self.job)


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that both engines find."""
    one = Cluster()
    errors = SimpleNamespace(FailedJobError=FailedError, UncompletedJobError=DiedError)
    slurm = SimpleNamespace(AutoExecutor=lambda **_: one,
                            core=SimpleNamespace(utils=errors))  # fmt: skip
    ray = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 1}, put=lambda x: x,
        remote=lambda **_: lambda f: SimpleNamespace(remote=lambda *x: one.submit(f, *x)),
        get=Submitted.result, cancel=one.cancel,
        exceptions=SimpleNamespace(WorkerCrashedError=DiedError, OutOfMemoryError=DiedError),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "submitit", slurm)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return one


def test_a_job_that_dies_under_slurm_is_begun_three_times_and_each_is_awaited(cluster):
    found = run(process, ["deadly", "b"], engine="slurm", workers=2, lost=lambda job: ("lost", job))
    assert [one[:2] for one in found] == [("lost", "deadly"), (None, "b")]
    assert cluster.began.count("deadly") == cluster.awaited.count("deadly") == TRIES
    assert cluster.stopped == []


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_closing_the_results_stops_what_a_cluster_still_runs(cluster, engine):
    results = run(process, ["a", "b", "c", "d"], engine=engine, workers=2, ahead=1)
    assert next(results)[1] == "a"
    results.close()
    assert cluster.began == ["a", "b"]
    assert cluster.stopped == ["b"]


def test_cores_are_those_this_process_may_use():
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.fixture
def swept(monkeypatch):
    """A sweep of many parts by an engine."""
    monkeypatch.setattr(sys.modules["scantling.search.sweep"], "PART", 50)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    b = budget(**NARROW)
    return lambda engine: sweep(space(b), b, 20, engine=engine, workers=2)


def same(one, other):
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.objectives, other.objectives)
    for name in ("considered", "evaluated", "feasible", "removed", "least", "closest"):
        assert getattr(one, name) == getattr(other, name), name


def test_a_pool_sweeps_to_the_same_answer(swept):
    one = swept("here")
    assert one.evaluated > 2000
    assert one.feasible > 50
    same(one, swept("pool"))


def test_two_processes_of_ray_sweep_to_the_same_answer(swept):
    pytest.importorskip("ray", reason="needs the extra ray")
    same(swept("here"), swept("ray"))


def test_a_space_in_parts_has_the_front_of_the_whole(swept):
    b = budget(**NARROW)
    one = swept("here")
    sys.modules["scantling.search.sweep"].PART = 10**9
    whole = sweep(space(b), b)
    assert np.array_equal(one.rows, whole.rows)
    assert one.objectives == pytest.approx(whole.objectives, rel=1e-12)
    assert (one.feasible, one.removed) == (whole.feasible, whole.removed)


def test_an_interrupt_ends_a_sweep_with_what_it_has(monkeypatch):
    done = []

    def stop(n):
        done.append(n)
        if len(done) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["scantling.search.sweep"], "PART", 50)
    b = budget(**NARROW)
    whole = sweep(space(b), b, 20)
    part = sweep(space(b), b, 20, progress=stop)
    assert (part.stopped, whole.stopped) == (True, False)
    assert part.evaluated == sum(done) == 150
    assert part.feasible < whole.feasible
    assert part.considered == whole.considered


def test_ray_that_is_not_installed_is_an_error_that_says_how():
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(FieldError, match=r"scantling\[ray\]"):
            list(run(operator.add, [1], engine="ray"))
    else:
        pytest.skip("ray is installed")
