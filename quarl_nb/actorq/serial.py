"""The serial engine: learner and actors take turns in one process, bit for bit repeatable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask
from quarl_nb.actorq.variables import Variables
from quarl_nb.rl.envs import check_apart


def run_serial(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Let every actor send one message in turn; learn as much as the rate limiter allows.

    Policies are published when they are pulled, so that an actor always pulls the newest; with a
    `publish_period` it may pull one that is older than that by fewer updates.
    """
    learner, publish_period = run.learner, tasks[0].settings.publish_period or 1
    newest: Variables | None = None
    actors: list[Actor] = []
    try:
        for task in tasks:
            actors.append(Actor(task))
        check_apart([env for actor in actors for env in actor.envs])
        run.start_clock()
        turns = itertools.cycle(actors)
        while not run.finished:
            actor = next(turns)
            if actor.pull_due:
                if newest is None or learner.updates - newest.version >= publish_period:
                    with learner.timed("publish"):
                        newest = make_variables(learner.policy(), learner.updates, tasks[0])
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
