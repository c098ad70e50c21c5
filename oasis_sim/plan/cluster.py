"""Run jobs on a Ray cluster (extra `ray`): actors that keep their inputs loaded take jobs in turn.

`RAY_ADDRESS` names the cluster; without it Ray starts one on this machine. Other machines need the
same `oasis-sim` and the working directory under the same path, since jobs name files.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.fileio import printable

SECONDS_TO_ANSWER = 10

J = TypeVar("J")
R = TypeVar("R")


class _Worker:
    """Do jobs one after the other, in the directory of the command that started them."""

    def __init__(self, make_handler: Callable[[], Callable[[Any], Any]], directory: str) -> None:
        os.chdir(directory)
        self._handler = make_handler()

    def do(self, index: int, job: Any) -> tuple[int, Any]:
        return index, self._handler(job)


def require_ray() -> Any:
    """Return the module ray; raise UsageError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise UsageError("--cluster ray needs Ray: pip install -e '.[ray]'") from None
    return ray


def run_on_ray(
    make_handler: Callable[[], Callable[[J], R]], jobs: Sequence[J], workers: int | None
) -> Generator[tuple[int, R], None, None]:
    """Yield `(index, result)` of each job as it ends; `workers` is None for all of the cluster.

    The same contract as `pool.run_jobs`. Closing the iterator ends the actors.
    """
    if not jobs:
        return
    ray = require_ray()
    started = _connect(ray, workers)
    try:
        count = workers or int(ray.cluster_resources().get("CPU", 1))
        actor = ray.remote(num_cpus=1, max_restarts=0)(_Worker)
        actors = [actor.remote(make_handler, os.getcwd()) for _ in range(min(count, len(jobs)))]
        pool = ray.util.ActorPool(actors)
        pairs = list(enumerate(jobs))
        yield from pool.map_unordered(lambda each, pair: each.do.remote(*pair), pairs)
    except ray.exceptions.RayActorError as error:
        raise RunFailed(
            f"a Ray worker is gone ({_first_line(error)}); what is done is kept: run the command "
            "again to go on"
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, workers: int | None) -> bool:
    """Join the cluster or start one here; tell whether this command owns the connection."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    _check_answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(
            num_cpus=None if address else workers,
            include_dashboard=False,
            configure_logging=True,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise RunFailed(f"no Ray cluster: {_first_line(error)}") from None
    return True


def _check_answers(address: str) -> None:
    """Raise RunFailed when nothing answers at an address; Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise RunFailed(
            f"no Ray cluster at RAY_ADDRESS={printable(address, 80)}: {_first_line(error)}"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
