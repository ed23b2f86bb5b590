"""Sweeps on a Ray cluster: one actor is one supervisor with exclusive use of one GPU. Needs the package ray.

`spread` divides one sweep by case over equal GPUs into one run; `each` measures the whole sweep on every card or on one
card of each kind, as separate runs. The driver assigns the cases and writes all files, so that no file on another host
is needed. It has two calls of each card under way: the case that is measured, and a look at the current step.
"""

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.compare.cards import differences, neighbours
from results.files.journal import JournalError, RunFolder, new_run_id
from results.records import run_from_json
from runner.cells import cell_from_json
from runner.launch import ClusterChoice
from runner.launchers.cluster import chosen_cards, connected, first_line, gpus_by_kind, same_files, slots_by_kind
from runner.launchers.on_card import CardSupervisor, Errand, slot_of_process
from runner.launchers.share import Share
from runner.locks import DeviceBusy
from runner.machine.kernel_hash import kernel_hash
from runner.progress import Progress
from runner.supervise.job import Cancelled, Job, Refused, SweepFailed
from runner.supervise.worker_handle import COMMAND

_LOOK_S = 0.05  # interval of checks of the cards while there are no messages
_FORCE_AFTER_S = 2.0  # time after a cancel until cards are killed, so that a cancel takes at most 5 s
_LOSSES_OF_CARD = 5  # lost cards in one slot after which it is not filled again
_FIRST_LIMIT_S = 60.0  # time limit for Ray's first process on the driver's node
_NODES_EVERY_S = 2.0  # interval of checks for living nodes
_GONE_AFTER_S = 10.0  # time limit for a card to end normally
_FREE_S = 1.0  # time for Ray to notice that actors ended
_CALLS = 3  # calls of a card at the same time: a case, a look, and a stop
# Fields of a job that every card is given.
_GIVEN = ("sweep", "implementations", "capabilities", "protocol", "seed", "step_limit_s")


@dataclass
class Task:
    """An actor and its card, which is known after its first answer."""

    share: Share
    kind: str | None
    actor: Any = None
    card: str | None = None
    ended: bool = False
    why: str = ""  # reason for its end, unless everything is measured
    busy: bool = False
    told: bool = False  # to stop
    losses: int = 0  # number of lost cards in this slot before
    peaks: bool = False  # whether it measures the peaks of the run, which one card does


class _Card(CardSupervisor):
    """The supervisor of a card as an actor."""

    def __init__(self, errand: Errand) -> None:
        import ray

        super().__init__(errand, slot_of_process(ray.get_runtime_context().get_node_id()))


def measure(
    job: Job,
    home: Path,
    request: ClusterChoice,
    *,
    progress: Progress,
    stop: Callable[[], bool],
    worker_command: tuple[str, ...] = COMMAND,
) -> list[RunFolder]:
    """Measure a sweep on the cards of a cluster and return the folders of its runs.

    Raises Refused, DeviceBusy, Cancelled, SweepFailed or JournalError.
    """
    with connected(request.address) as ray:
        kinds = chosen_cards(ray, request, job.device)
        driver = Driver(ray, job, home, request, progress, stop, worker_command)
        try:
            return driver.run(kinds)
        finally:
            driver.close()


class Driver:
    """Assigns the cases of a sweep to the cards of a cluster and records their rows."""

    def __init__(
        self,
        ray: Any,
        job: Job,
        home: Path,
        request: ClusterChoice,
        progress: Progress,
        stop: Callable[[], bool],
        worker_command: tuple[str, ...],
    ) -> None:
        self._ray, self._job, self._home, self._request = ray, job, home, request
        self._progress, self._stop, self._worker_command = progress, stop, worker_command
        self._tasks: dict[int, Task] = {}
        self._calls: dict[Any, int] = {}  # calls under way, with the number of their task
        self._looked_at = 0.0
        self._token = uuid.uuid4().hex[:8]  # distinguishes the claims of this driver from those of an earlier one
        self._code = ""  # hash of the kernels in this checkout
        self._asking: list[int] = []  # tasks whose card waits for a case
        self._shares: list[Share] = []

    def run(self, kinds: list[str | None]) -> list[RunFolder]:
        """Measure on cards of these kinds."""
        self._begin(kinds)
        self._code = kernel_hash()  # while Ray starts its processes
        self._wait_for_first_process()
        self._follow()
        for share in self._shares:
            if not share.over:
                raise self._failure(share)
        for share in self._shares:
            share.write_state("finished")
            run = share.folder.run()
            if len(found := differences(run.cards or {})) > 1:
                words = ", ".join(f"{card} {ratio:.3f}" for card, ratio in found.items())
                self._progress.say(f"Calibration case, time over the cards' median: {words}.")
            if words := neighbours(run.cards or {}, run.command):
                self._progress.say(words)
        return [share.folder for share in self._shares]

    def close(self) -> None:
        """Stop the remaining cards and release the locks."""
        for task in self._tasks.values():
            if not task.ended:
                self._force(task)
        if self._calls:
            self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=_FREE_S)
        for share in self._shares:
            share.close()
        self._progress.finish()

    def _wait_for_first_process(self) -> None:
        """Wait until a process that Ray starts here answers. Raises Refused after a time limit, or Cancelled."""
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        answer = self._ray.remote(num_cpus=0, scheduling_strategy=here)(lambda: None).remote()
        deadline = time.monotonic() + _FIRST_LIMIT_S
        while not self._ray.wait([answer], timeout=0)[0]:
            time.sleep(_LOOK_S)
            if self._stop():
                raise Cancelled
            if time.monotonic() > deadline:
                raise Refused(
                    f"Ray started no process here within {_FIRST_LIMIT_S:.0f} s. Its logs are in "
                    "/tmp/ray/session_latest/logs; a package that its Python does not find is a usual cause."
                )

    def _begin(self, kinds: list[str | None]) -> None:
        run_id = self._job.resume or self._job.run_id or new_run_id(self._job.sweep.name)
        spread = self._request.mode == "spread"
        options = {"several": spread, "one_per_host": self._request.one_per_host}
        for number, kind in enumerate(kinds):
            first = not self._shares or not spread
            if first:
                name = run_id if not number else f"{run_id}-{number + 1}"
                self._shares.append(Share(self._job, self._home, name, **options))
            self._tasks[number] = Task(self._shares[-1], kind, peaks=first)
            self._submit(number)

    def _submit(self, number: int) -> None:
        task, job = self._tasks[number], self._job
        errand = Errand(
            job=Job(
                device="cpu" if job.device == "cpu" else None,
                run_id=task.share.run_id,
                peaks=task.peaks,
                **{name: getattr(job, name) for name in _GIVEN},
            ),
            claims=f"{task.share.run_id}-{self._token}",
            home=str(self._home),
            worker_command=self._worker_command,
            python_path=same_files()["PYTHONPATH"],
        )
        gpus = {"num_gpus": 1} if gpus_by_kind(self._ray) else {}
        kind = {"resources": {f"accelerator_type:{task.kind}": 0.001}} if task.kind else {}
        actor = self._ray.remote(num_cpus=0 if gpus else 1, max_concurrency=_CALLS, **gpus, **kind)(_Card)
        task.actor = actor.remote(errand)
        self._calls[task.actor.opened.remote()] = number

    def _follow(self) -> None:
        """Process answers until every share is complete or has no card left. Raises Cancelled or JournalError."""
        try:
            while any(not task.ended for task in self._tasks.values()):
                if self._stop():
                    raise Cancelled
                self._listen()
                self._give_up_waiting()
                self._deal()
                for share in self._shares:
                    if share.folder and share.folder.cancel_requested():
                        raise Cancelled
                    share.write_state("running")
                self._show()
                if all(share.over for share in self._shares):
                    self._end_all("end")
        except (Cancelled, JournalError) as error:
            self._end_all("stop")
            cancelled = isinstance(error, Cancelled)
            for share in self._shares:
                with contextlib.suppress(JournalError):
                    state, words = (
                        ("cancelled", "Cancelled. It can be resumed.") if cancelled else ("failed", str(error))
                    )
                    share.write_state(state, words)
            if cancelled:
                raise Cancelled(*(share.run_id for share in self._shares if share.folder)) from None
            raise

    def _listen(self) -> None:
        """Process the answers of cards, waiting a moment for the first. A card that is lost raises in all its calls."""
        for ref in self._ray.wait(list(self._calls), timeout=_LOOK_S)[0]:
            number = self._calls.pop(ref)
            task = self._tasks[number]
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                if not task.ended:
                    self._lose(number, task, f"{type(error).__name__}: {first_line(error)}")
                continue
            if not task.ended:
                self._answer(number, task, answer)

    def _answer(self, number: int, task: Task, answer: dict[str, Any]) -> None:
        share, event = task.share, answer["event"]
        if task.card and "lines" in answer:
            share.log(task.card, answer["lines"])
        if event == "ended":
            task.busy = answer["how"] == "DeviceBusy"
            if answer["how"] != "done":
                task.why = task.why or answer["message"] or "It was cancelled."
            if task.card:
                share.spent(number, answer["costs"])
                share.lost(task.card, task.why)
            self._force(task)
        elif event == "at":
            if answer["current"]:
                share.heard(task.card, answer["current"])
            self._calls[task.actor.look.remote()] = number
        else:
            self._asking.append(number)
            if task.told:
                return
            if event == "opened":
                self._admit(number, task, answer)
            else:
                share.spent(number, answer["costs"])
                share.done(task.card, answer["rows"])
                share.peaks(run_from_json(answer["run"]))

    def _deal(self) -> None:
        """Assign a case to each waiting card while there are cases; let cards that were told to stop end."""
        for number in list(self._asking):
            task = self._tasks[number]
            do, index = ("end", None) if task.told else task.share.take(task.card)
            if do != "wait":
                self._asking.remove(number)
                self._calls[task.actor.measure.remote(index)] = number

    def _admit(self, number: int, task: Task, message: dict[str, Any]) -> None:
        """Add a card to its share, unless its kernels or its software differ from the run's."""
        try:
            run = run_from_json(message["run"])
            if run.kernel_hash != self._code:
                raise Refused(
                    f"Card {message['card']} on {message['host']} has kernels {run.kernel_hash}, and here they are "
                    f"{self._code}: bring that checkout to the same commit."
                )
            cells = [cell_from_json(record) for record in message["cells"]]
            task.share.admit(message["card"], message["host"], run, cells)
            task.card = message["card"]
            self._calls[task.actor.look.remote()] = number
        except Refused as error:
            task.why = str(error)
            self._progress.say(task.why)
            self._send_away(task)

    def _lose(self, number: int, task: Task, why: str) -> None:
        """Make the case of a lost card available again, and submit another actor in its place."""
        task.why = why
        self._force(task)  # where only a call failed, its actor still has the GPU
        self._asking = [each for each in self._asking if each != number]
        self._progress.say(f"Lost {task.card or 'a card'}. {why}")
        if task.card:
            task.share.lost(task.card, why)
        if task.losses < _LOSSES_OF_CARD and not task.told and not task.share.over:
            another = len(self._tasks)
            self._tasks[another] = Task(task.share, task.kind, losses=task.losses + 1, peaks=task.peaks)
            self._submit(another)

    def _give_up_waiting(self) -> None:
        """End actors that wait for a GPU kind that no living node has, for which Ray would wait forever."""
        waiting = [task for task in self._tasks.values() if not task.ended and task.card is None]
        if not waiting or time.monotonic() - self._looked_at < _NODES_EVERY_S:
            return
        self._looked_at = time.monotonic()
        alive = slots_by_kind(self._ray, self._job.device)
        for task in waiting:
            if not (alive[task.kind] if task.kind else alive.total()):
                self._force(task)
                task.why = "Its node is gone, and no other node has a card of its kind."

    def _show(self) -> None:
        counts = [share.counts for share in self._shares]
        done, total = (sum(column) for column in zip(*counts, strict=True))
        if not total:
            return
        etas = [share.eta_s for share in self._shares if share.eta_s is not None and not share.over]
        current = "; ".join(share.current for share in self._shares if share.current) or "waiting for a card"
        self._progress.show(done, total, current, max(etas, default=None))

    def _send_away(self, task: Task) -> None:
        task.told = True
        task.actor.stop.remote()

    def _end_all(self, how: str) -> None:
        """Let every card end, and kill those that do not end in time."""
        limit_s = _FORCE_AFTER_S if how == "stop" else _GONE_AFTER_S
        for task in self._tasks.values():
            if how == "stop" and not task.ended:
                self._send_away(task)
            elif not task.ended and task.card is None:  # it waits for a GPU that is no longer needed
                self._force(task)
        deadline = time.monotonic() + limit_s
        while any(not task.ended for task in self._tasks.values()) and time.monotonic() < deadline:
            self._deal()
            self._listen()
        for task in self._tasks.values():
            if not task.ended:
                self._force(task)

    def _force(self, task: Task) -> None:
        """End an actor with its processes."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(task.actor)
        task.ended = True

    def _failure(self, share: Share) -> Exception:
        """Return the exception for a share that has no card left."""
        tasks = [task for task in self._tasks.values() if task.share is share]
        why = " ".join(dict.fromkeys(task.why for task in tasks if task.why)) or "No card answered."
        with contextlib.suppress(JournalError):
            share.write_state("failed", why)
        if share.folder is None:
            return DeviceBusy(why) if all(task.busy for task in tasks) else Refused(why)
        return SweepFailed(f"No card is left; --resume goes on. {why}")
