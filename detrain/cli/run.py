"""`detrain run`: train, with checkpoints; run again, it resumes to the bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from detrain.base import messages, timing
from detrain.base.config import TOGETHER, Ranks
from detrain.base.options import Options
from detrain.cli.shared.options import Given, program_command
from detrain.launcher.configuration import become, configure
from detrain.runtime.ranks import launched
from detrain.store.job_home import rank_folder


@program_command
def command(*, options: Options, given: Given) -> int:
    """Run PROGRAM deterministically and with checkpoints; run again, it resumes to the bit.

    \b
    Example:
      detrain run --every 50b train.py --epochs 10
    """
    ranks = Ranks.of_environment()
    if ranks is not None:
        launched.end_with_launcher()
    elif (other := Ranks.launched()) is not None and other[1].rank == 0:
        messages.say(f"one of {other[1].world} processes that {other[0]} has started, each a run of its own")
        messages.say(f"if they train together, {TOGETHER}")
    options.check(is_job=ranks is not None)
    if options.timing:
        timing.begin("start of the command")
        timing.enter("the program's text")
    program = given.found()
    if options.mirror and not options.bare:
        from detrain.store.mirror import link

        timing.enter("mirror")
        home = Path(options.home).absolute()
        order = link.Order(
            url=options.mirror,
            home=str(home if ranks is None else rank_folder(home, program.name, ranks.rank)),
            program=program.name,
            patterns=() if ranks is not None and ranks.local_rank else options.mirror_files,
            run_pid=os.getpid(),
            is_fresh=options.fresh,
            may_come_later=options.mirror_later,
            bandwidth=options.mirror_bandwidth,
            rank=0 if ranks is None else ranks.rank,
            world=1 if ranks is None else ranks.world,
        )
        link.begin(order, options.mirror_wait)
    if options.preemption and not options.bare:
        from detrain.launcher import preemption

        preemption.watch(options.preemption)
    become(*configure(program, given.arguments, options, tuple(sys.argv[1:])))
