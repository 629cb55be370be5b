"""What faults cost: an unarmed site in the compiled step, and the share of a trial that is its steps' own time.

    python benchmarks/faults.py [--torch [--compiled]] [--steps 150] [--rounds 9] [--trials 24] [--repeat 7]

Step times: the step of the digits example, traced three times in one process: bare, with one site in place (unarmed),
with a site at every convolution and matrix product. All are traced anew for each round (traces of one and the same step
differ by a few hundredths in their times); within a round the three alternate. Ratios are of a round's medians, with
quartiles over rounds.

Trials: the digits example (steps of a few milliseconds) and a small ResNet-18, many trials in one process against one
process each. Their faults lie one step apart, as in a campaign with a trial for each step or more: few trials spread
over many steps pay for the steps between them as well. Only faults are taken under which the program goes on for all of
a trial's steps: one that ends with a loss that is no number ends its process, and the start of the next would be
measured. Efficiency is the time that a trial's steps take in the bare program over the trial's time; the bare program
runs in a process of its own before each campaign and after it (a process of TensorFlow may take half as long again for
all of its steps as the next one does).

With `--torch` the same of PyTorch's example: a step whose ops nobody watches, in a process with an experiment; one that
is armed, and one whose sites are listed; each beside the bare step. With `--compiled` of a model under `torch.compile`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "digits" / "train.py"
TORCH_EXAMPLE = ROOT / "examples" / "digits" / "torch_train.py"
WORKLOADS = ROOT / "examples" / "workloads" / "train.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
TRIAL = 60
"""Steps of a trial."""
STEPS_AN_EPOCH = 180
BARE_S = 15
"""For so many seconds the bare program runs, its start included."""


def quartiles(values: list[float]) -> str:
    """Return median [lower quartile, upper quartile]."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.4f} [{low:.4f}, {high:.4f}]"


def step_times(steps: int, rounds: int) -> None:
    """Print the ratios of step times."""
    import numpy as np
    import tensorflow as tf

    from detrain.adapters.api import Settings
    from detrain.adapters.tensorflow.adapter import TensorFlow
    from detrain.adapters.tensorflow.faults.graph_sites import Sites
    from detrain.adapters.tensorflow.faults.injector import ArmedSwitch, TensorFlowInjectionPoint
    from detrain.faults.drawing import draw_injection
    from detrain.faults.models import model_named
    from detrain.faults.plan import trial_rng
    from detrain.python.process.random_streams import Streams

    TensorFlow(Settings(0, len(os.sched_getaffinity(0))), Streams())
    placed: dict[str, Any] = {}
    sites = Sites(lambda name, _replica: [placed[key] for key in [name.partition("/")[2]] if key in placed], counts=False)
    import keras

    sites.on_keras()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 8, 8, 1)).astype(np.float32))
    y = tf.constant(rng.integers(0, 10, 32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def made() -> Callable[[], Any]:
        keras.utils.set_random_seed(0)
        keras.backend.clear_session()
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True))
            return value

        step()
        return step

    sites._counts = True  # to learn the names, once
    sites.begin_step()
    made()
    known = [site for site in sites.sites() if site.is_contraction and site.is_alive]
    sites._counts = False
    gate = ArmedSwitch()
    points = {
        site.name.partition("/")[2]: TensorFlowInjectionPoint(
            [draw_injection(site, model_named("RD"), 0, trial_rng(0, number))], gate
        )
        for number, site in enumerate(known)
    }
    bare = made()
    name = next(name for name in points if "backward" in name and "Conv2DBackpropFilter" in name)
    placed[name] = points[name]
    one = made()
    placed.update(points)
    every = made()
    values = [float(run()) for run in (bare, one, every) for _ in (0,)]
    print(f"the three steps have the same loss: {len(set(values)) == 1}")
    ratios: dict[str, list[float]] = {"one site": [], f"all {len(points)} sites": []}
    for _ in range(rounds):
        placed.clear()
        bare = made()
        placed[name] = points[name]
        one = made()
        placed.update(points)
        every = made()
        times: list[list[float]] = [[], [], []]
        for _ in range(steps):
            for index, run in enumerate((bare, one, every)):
                began = time.perf_counter()
                run().numpy()
                times[index].append(time.perf_counter() - began)
        medians = [statistics.median(each) for each in times]
        ratios["one site"].append(medians[1] / medians[0])
        ratios[f"all {len(points)} sites"].append(medians[2] / medians[0])
    print(f"bare step: {medians[0] * 1e3:.3f} ms (median of {steps}; limit: what an empty If costs in TensorFlow's executor)")
    for name, found in ratios.items():
        print(f"unarmed / bare, {name}: {quartiles(found)}")


def torch_step_times(steps: int, rounds: int, *, is_compiled: bool) -> None:
    """Print the times of steps of PyTorch's example, beside the bare step."""
    import torch
    from torch import nn

    from detrain.adapters.api import Settings
    from detrain.adapters.torch.adapter import Torch
    from detrain.faults.drawing import draw_injection
    from detrain.faults.experiment import Experiment
    from detrain.faults.models import model_named
    from detrain.faults.plan import trial_rng
    from detrain.python.process.random_streams import Streams

    def made() -> Callable[[], Any]:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
        model = nn.Sequential(*layers, nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-6)  # or the loss of one batch becomes 0
        images, labels = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
        run = torch.compile(model) if is_compiled else model

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(images), labels).backward()
            optimizer.step()

        return step

    def timed(step: Callable[[], Any]) -> float:
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    class Trial:
        plans = (Experiment(log="", is_profile=True),)
        instruments: Any = None

        def attach(self, instruments: Any) -> None:
            self.instruments = instruments

        def ends_with(self, _loss: Callable[[], float]) -> bool:
            return False

    graph = torch.autograd.graph
    original = graph._engine_run_backward
    trial = Trial()
    torch.set_num_threads(1)  # with more, others on the machine count more
    unheard = made()
    unheard()
    adapter = Torch(Settings(0, threads=1, experiment=trial), Streams())
    frames = sys.modules.get("torch._dynamo.eval_frame")
    unset = (frames.set_eval_frame, frames._maybe_set_eval_frame) if frames is not None else ()
    for module in ("torch._dynamo", "torch._functorch.aot_autograd") if is_compiled else ():
        adapter.on_import(module)
    set_ = (frames.set_eval_frame, frames._maybe_set_eval_frame) if frames is not None else ()
    instruments, watched = trial.instruments, graph._engine_run_backward
    step = made()
    instruments.begin_step()
    step()
    found = {site.label.rpartition(".")[2]: site for site in instruments.sites() if site.is_contraction}
    faults = {  # of the lowest bit: what follows computes with numbers as usual
        "armed, an output": draw_injection(found["4"], model_named("BIT:0"), 0, trial_rng(0, 0)),
        "armed, a weight": draw_injection(found["4_grad_wt"], model_named("BIT:0@weight"), 0, trial_rng(0, 0)),
    }

    def bare() -> None:
        graph._engine_run_backward = torch.autograd._engine_run_backward = original
        if frames is not None:
            frames.set_eval_frame, frames._maybe_set_eval_frame = unset
        unheard()
        graph._engine_run_backward = torch.autograd._engine_run_backward = watched
        if frames is not None:
            frames.set_eval_frame, frames._maybe_set_eval_frame = set_

    def plain() -> None:
        step()
        instruments.series()

    def armed() -> None:
        instruments.arm(0)
        step()
        instruments.disarm()

    def listed() -> None:
        instruments.begin_step()
        step()
        instruments.sites()

    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        times: dict[str, list[float]] = {}
        step = made()
        for _ in range(steps):
            step()  # what was looked at before has cleared the caches
            times.setdefault("bare", []).append(timed(bare))
            times.setdefault("of an experiment", []).append(timed(plain))
            for name, injection in faults.items():
                instruments.select(injection)
                times.setdefault(name, []).append(timed(armed))
            times.setdefault("whose sites are listed", []).append(timed(listed))
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, median in medians.items():
            ratios.setdefault(name, []).append(median / medians["bare"] if name != "bare" else median * 1e3)
    print(f"bare step, ms: {quartiles(ratios.pop('bare'))}; {len(found)} contractions")
    for name, values in ratios.items():
        print(f"step {name} / bare: {quartiles(values)}")


class Trained(NamedTuple):
    """A program that trials are done on."""

    name: str
    program: Path
    arguments: tuple[str, ...]
    """Of a run of one epoch, in which all trials are."""
    endless: tuple[str, ...]
    """Of a bare run that goes on for longer than all trials."""
    count: int
    """How many trials are done."""
    counted: str
    """Runs a program, and writes at which times its steps have been done, when it is ended."""


RUN = """
def write(*_):
    with open(target, "w") as file:
        file.write("\\n".join(map(repr, max(times.values(), key=len))))
    raise SystemExit(0)
target = sys.argv.pop(1)
signal.signal(signal.SIGTERM, write)
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
COUNTED = (
    """
import os, runpy, signal, sys, time
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
times, original = {}, Function.__call__
def call(self, *args, **kwargs):
    result = original(self, *args, **kwargs)
    times.setdefault(self._name, []).append(time.monotonic())
    return result
Function.__call__ = call
"""
    + RUN
)
"""By its most called compiled function, which is the step."""
COUNTED_TORCH = (
    """
import os, runpy, signal, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
times = {0: []}
register_optimizer_step_post_hook(lambda *_: times[0].append(time.monotonic()))
"""
    + RUN
)


def bare_step_s(trained: Trained, folder: Path) -> float:
    """Return the seconds that a step of the bare program takes, the first second's steps left out."""
    counted, times = folder / "counted.py", folder / "times"
    counted.write_text(trained.counted)
    times.unlink(missing_ok=True)
    program = (str(counted), str(times), str(trained.program), *trained.endless)
    command = [sys.executable, "-m", "detrain", "run", "--bare", *program]
    for seconds in (BARE_S, 4 * BARE_S):  # on a busy machine it may not have begun by then
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.terminate()
        process.wait()
        if times.is_file():
            break
    moments = [float(line) for line in times.read_text().splitlines()]
    kept = [moment for moment in moments if moment > moments[0] + 1]
    return (kept[-1] - kept[0]) / (len(kept) - 1)


def digits(folder: Path, count: int) -> Trained:
    """Return the digits example without its validation, so that its time is that of its steps, in batches of 8."""
    text = EXAMPLE.read_text()
    line = "for images, labels in held_out_set:"
    assert text.count(line) == 1
    program = folder / "digits.py"
    program.write_text(text.replace(line, line.replace(":", ".take(0):")))
    fixed = ("--batch-size", "8", "--epochs")
    return Trained("digits", program, (*fixed, "1"), (*fixed, "10000"), count, COUNTED)


def torch_digits(folder: Path, count: int) -> Trained:
    """Return PyTorch's example without its validation and without workers, in batches of 8."""
    text = TORCH_EXAMPLE.read_text()
    line = "for images, labels in loader)"
    assert text.count(line) == 1
    program = folder / "torch_digits.py"
    program.write_text(text.replace(line, "for images, labels in [next(iter(loader))])"))
    fixed = ("--batch-size", "8", "--workers", "0", "--patience", "100000", "--epochs")
    return Trained("torch digits", program, (*fixed, "1"), (*fixed, "10000"), count, COUNTED_TORCH)


def resnet(count: int) -> Trained:
    """Return ResNet-18 at a quarter of its width, on made images, in batches of 32."""
    fixed = ("--model", "resnet18", "--data", "synthetic", "--width", "0.25", "--batch", "32", "--steps", str(STEPS_AN_EPOCH))
    return Trained("resnet18", WORKLOADS, (*fixed, "--epochs", "1"), (*fixed, "--epochs", "10000"), count, COUNTED)


def trials(trained: Trained, rounds: int) -> None:
    """Print how long trials take: many in one process, and one process each."""
    from detrain.campaign.batch_of_trials import run_together
    from detrain.campaign.planning.drawn_plan import DrawnPlan
    from detrain.campaign.subject import Subject
    from detrain.faults.models import PUBLISHED
    from detrain.faults.population.facts import DIGESTS_EVERY
    from detrain.launcher.program import Program

    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(Program.find(str(trained.program), is_module=False), trained.arguments, Path(folder))
        sites = [site for site in subject.sites() if site.is_contraction]
        golden = subject.whole()
        steps = [(0, 0, batch) for batch in range(1, 1 + 2 * trained.count)]
        plan_of_all = DrawnPlan(3, len(steps), list(PUBLISHED.values()), {0: sites}, steps, lambda _at: sites, after=TRIAL)
        drawn = {number: plan_of_all.trial(number)[1] for number in range(len(steps))}
        drawn = {
            number: msgspec.structs.replace(plan, stops_on_nonfinite=False, at=steps[number]) for number, plan in drawn.items()
        }
        whole = [number for number, done in run_together(subject, drawn, golden) if done.end == "until"]
        assert len(whole) >= trained.count
        chosen = sorted(whole)[: trained.count]
        plans = {number: msgspec.structs.replace(drawn[number], at=at) for number, at in zip(chosen, steps, strict=False)}
        one, each, share, own = [], [], [], [bare_step_s(trained, Path(folder))]
        for _ in range(rounds):
            began = time.monotonic()
            stamps = [time.monotonic() for _ in run_together(subject, plans, golden)]
            one.append((time.monotonic() - began) / trained.count)
            began = time.monotonic()
            subject.trial(plans[chosen[0]])
            each.append(time.monotonic() - began)
            own.append(bare_step_s(trained, Path(folder)))
            step, trial = statistics.mean(own[-2:]), (stamps[-1] - stamps[0]) / (len(stamps) - 1)
            share.append(TRIAL * step / trial)
            print(
                f"  own time of {TRIAL} steps {TRIAL * step:.3f} s, a trial {trial:.3f} s behind the start, alone {each[-1]:.2f} s",
                flush=True,
            )
    print(
        f"{trained.name}, steps of {statistics.median(own) * 1e3:.1f} ms, {len(sites)} sites, a digest each {DIGESTS_EVERY} steps:"
    )
    print(
        f"  {trained.count} trials of {TRIAL} steps in one process, its start included: {statistics.median(one):.2f} s each, "
        f"{3600 / statistics.median(one):.0f} an hour"
    )
    print(f"  one process each: {statistics.median(each):.2f} s each, {3600 / statistics.median(each):.0f} an hour")
    print(f"  steps' own time / time of a trial in one process: {quartiles(share) if rounds > 1 else share[0]}")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--torch", action="store_true", help="PyTorch's example")
    parser.add_argument("--compiled", action="store_true", help="under torch.compile: its step times alone")
    options = parser.parse_args()
    if options.torch:
        torch_step_times(options.steps, options.rounds, is_compiled=options.compiled)
        with tempfile.TemporaryDirectory() as folder:
            if options.trials:
                trials(torch_digits(Path(folder), options.trials), options.repeat)
        return
    if options.trials:
        with tempfile.TemporaryDirectory() as folder:
            trials(digits(Path(folder), options.trials), options.repeat)
        trials(resnet(max(options.trials // 2, 2)), options.repeat)
    step_times(options.steps, options.rounds)


if __name__ == "__main__":
    main()
