"""The serial engine: learner and actors take turns in one process, bit for bit repeatable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.quantizer import quantize_policy
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask
from quarl_nb.actorq.variables import Variables


def run_serial(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Let every actor send one message in turn; learn as much as the rate limiter allows.

    Policies are published when they are pulled, so that an actor always pulls the newest.
    """
    learner = run.learner
    newest: Variables | None = None
    actors = [Actor(task) for task in tasks]
    run.start_clock()
    try:
        turns = itertools.cycle(actors)
        while not run.finished:
            actor = next(turns)
            if actor.pull_due:
                if newest is None or newest.version < learner.updates:
                    with learner.timed("publish"):
                        newest = quantize_policy(learner.policy(), learner.updates, tasks[0])
                    run.count_publication(len(newest.payload))
                    run.count_cpu("quantizer")
                actor.open(newest)
            transitions = actor.report(actor.collect(actor.message_steps, learner.orders))
            run.count_cpu("actors")
            run.receive(transitions)
            while learner.can_update():
                run.update()
            run.count_cpu("learner")
    finally:
        for actor in actors:
            actor.close()
