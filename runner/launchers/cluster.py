"""Ray clusters: connecting to one or starting one on this machine, listing its GPUs, and choosing cards.

Needs the package ray.
"""

import contextlib
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.paths import REPOSITORY
from runner.launch import ClusterChoice
from runner.supervise.job import Refused

_PORT = 6379  # where `ray start --head` listens
_ANSWER_LIMIT_S = 5.0
_STORE_BYTES = 80 * 2**20  # size of Ray's object store; messages are small
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TOKEN = Path(".ray") / "auth_token"  # Ray's token file in the user's home
_TOKEN_WORDS = "A cluster with a token needs RAY_AUTH_MODE=token and the token in ~/.ray/auth_token."
_LEFT_OUT = (
    "results/runs", "results/trash", "results/logs", "results/published/*/measurements.*",
    ".git", ".screenshots", "tests", "*.duckdb",
)  # fmt: skip


def installed(*, only_here: bool) -> Any:
    """Return the module ray; with `only_here` it listens on the loopback interface only.

    Raises Refused if Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    if only_here:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # selects the loopback interface on Linux too
    try:
        import ray
    except ImportError:
        raise Refused("Ray is not installed here; install it with `pip install ray`.") from None
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster or start one on this machine, and disconnect at the end. Raises Refused if that fails."""
    if address and address.rpartition(":")[0] in _LOOPBACK and (Path.home() / _TOKEN).exists():
        # `ray start` requires a token if the file exists, and Ray sends it only if this is set before its import. For
        # other hosts the user must set it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = installed(only_here=not address)
    if address:
        address = _answering(address)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": f"attnbench-{os.getpid()}"}
    try:
        if not address:
            from unittest import mock  # loads asyncio, which no other command of the runner needs

            here = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
            with mock.patch.dict(os.environ, same_files()):  # inherited by Ray's processes
                ray.init(address="local", **here, **quiet)
        else:
            _join(ray, address, quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = f"There is no Ray cluster at {address or 'this machine'}: {first_line(error)}."
        raise Refused(f"{why} {_TOKEN_WORDS}" if address else why) from None
    if threading.current_thread() is threading.main_thread():
        for number, handler in signals.items():  # Ray replaces the handler of SIGTERM
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def describe(address: str | None) -> dict[str, Any]:
    """Return the cluster's nodes with their GPUs. Raises Refused."""
    with connected(address) as ray:
        free = ray.available_resources()
        nodes = [_node(ray, node) for node in ray.nodes() if node["Alive"]]
        return {"address": address, "nodes": nodes, "free": free.get("GPU", 0.0), "ray": ray.__version__}


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print the nodes of a cluster with their GPUs and the number of free ones."""
    if as_json:
        print(json.dumps(found))
        return
    where = f"at {found['address']}" if found["address"] else "of this machine"
    count = len(found["nodes"])
    print(f"Ray {found['ray']} {where}: {count} node{'' if count == 1 else 's'}")
    for node in found["nodes"]:
        gpus = f"{node['gpus']} x {node['kind'] or 'GPU of no named kind'}, {node['free']} free" if node["gpus"] else ""
        print(f"  {node['host']:<24}{node['address']:<18}{gpus or 'no GPU'}, {node['cpus']} CPUs")


def chosen_cards(ray: Any, request: ClusterChoice, device: str | None) -> list[str | None]:
    """Return the kind of each card to use, None for any kind. Raises Refused with the cards of the cluster."""
    have = slots_by_kind(ray, device)
    words = ", ".join(f"{count} x {kind or 'of no named kind'}" for kind, count in have.items()) or "no GPU"
    if not have:
        raise Refused(f"The cluster has {words}; --device cpu measures on its processors.")
    if request.gpus.isdecimal():
        wanted = int(request.gpus)
        if not 0 < wanted <= sum(have.values()):
            raise Refused(f"{wanted} cards were requested; the cluster has {words}.")
        cards = [kind for kind, count in have.most_common() for _ in range(count)]  # the most frequent kind first
        have = Counter(cards[:wanted])
    elif request.gpus not in ("all", "kinds"):
        named = [kind.strip() for kind in request.gpus.split(",")]
        if unknown := [kind for kind in named if kind not in have]:
            raise Refused(f"No card of kind {', '.join(unknown)}; the cluster has {words}.")
        have = Counter({kind: have[kind] if request.mode == "spread" else 1 for kind in named})
    elif request.gpus == "kinds":
        have = Counter(dict.fromkeys(have, 1))
    if request.mode == "spread" and len(have) > 1:
        raise Refused(
            f"A sweep can only be spread over equal cards, and these are {words}; name one kind, such as --gpus H200."
        )
    return list(have.elements())


def gpus_by_kind(ray: Any) -> Counter[str | None]:
    """Return the number of GPUs of each kind on the living nodes."""
    found: Counter[str | None] = Counter()
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("GPU"):
            found[_kind_of(node["Resources"])] += int(node["Resources"]["GPU"])
    return found


def slots_by_kind(ray: Any, device: str | None) -> Counter[str | None]:
    """Return the number of usable cards of each kind; in a cluster without GPUs each node counts as one CPU."""
    found = gpus_by_kind(ray)
    if device == "cpu" and not found:
        return Counter({None: sum(node["Alive"] for node in ray.nodes())})
    return found


def first_line(error: Exception) -> str:
    """Return the first line of an error of Ray, which can be a page long."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def same_files() -> dict[str, str]:
    """Return the PYTHONPATH with which Ray's processes find this checkout and the modules of this process."""
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _answering(address: str) -> str:
    """Return host:port of a head node. Raises Refused if there is no answer, for which Ray would wait forever."""
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port or _PORT)), timeout=_ANSWER_LIMIT_S):
            return f"{host}:{port or _PORT}"
    except (OSError, ValueError) as error:
        raise Refused(f"There is no Ray cluster at {address}: {error}. `ray start --head` starts one.") from None


def _join(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    """Connect to a cluster. Processes on this host use this checkout; if there are other hosts, all get a copy.

    Ray's processes search for modules in the working directory of this process. If that is the checkout, no runtime
    environment is needed, which saves seconds of process starts.
    """
    ray.init(address=address, runtime_env=None if Path.cwd() == REPOSITORY else {"env_vars": same_files()}, **quiet)
    if {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]} != {os.uname().nodename}:
        ray.shutdown()
        ray.init(address=address, runtime_env={"working_dir": str(REPOSITORY), "excludes": list(_LEFT_OUT)}, **quiet)


def _node(ray: Any, node: dict[str, Any]) -> dict[str, Any]:
    resources = node["Resources"]
    used = ray._private.state.available_resources_per_node().get(node["NodeID"], {})
    return {
        "host": node["NodeManagerHostname"],
        "address": node["NodeManagerAddress"],
        "kind": _kind_of(resources),
        "gpus": int(resources.get("GPU", 0)),
        "free": int(used.get("GPU", 0)),
        "cpus": int(resources.get("CPU", 0)),
    }


def _kind_of(resources: dict[str, float]) -> str | None:
    prefix = "accelerator_type:"
    return next((name.removeprefix(prefix) for name in resources if name.startswith(prefix)), None)
