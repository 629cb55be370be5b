"""The program that faults are put into. It runs in processes of its own, from checkpoints of its golden run.

All its files lie in one folder of the checkpoint home, `PROGRAM.faults`: the golden run (its checkpoints and the log of
its steps), the sites of the step, and a folder for each trial. The user's own checkpoints are read, never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from detrain.base import PACKAGE, messages
from detrain.base.child_processes import dying_with_this, scratch_folder
from detrain.base.cursor import Address, written
from detrain.base.errors import DetrainError, FaultInvalid
from detrain.base.structure import Structure, write_info
from detrain.campaign.full_disk import require_room
from detrain.campaign.judging.check import PASSES, measured_by, run_check
from detrain.campaign.time_limit import TimeLimit, Watch, limit_of
from detrain.campaign.trial_log import HANG, TrialResult, failed, is_as, read_log
from detrain.faults.experiment import BITS, VARIABLE, Experiment, refuse_several
from detrain.faults.population.facts import Coming
from detrain.faults.sites import Site
from detrain.launcher.program import Program
from detrain.launcher.structure import info_owner
from detrain.python.process.environment import base_environment, for_runs_of_ours, threads_here
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.said import KEEPS_VARIABLES, VARIABLES_SUFFIX
from detrain.store import Catalogue, Entry, read_meta
from detrain.store.catalogue import INFO_NAME, link, up_to

_NEVER: Final = "1000000000"
_ALL: Final = "1000000000"
_ERRORS: Final = "stderr"
_OUTPUT: Final = "stdout"
_FILES_LOCK: Final = ".files.lock"
_CHECKED: Final = "checked"
"""File with the check that a second golden run has passed."""
_MEASURED: Final = "measured"
"""File with the name of the user's function, and the number that it gave."""
_WATCHED: Final = ".watched"
"""Suffix of the file with the log line of a step whose ops were watched while its sites were listed."""
_CHECK_S: Final = 3600.0
"""The user's check fails if it takes longer."""
_POLL_S: Final = 0.05


@dataclass
class Subject:
    """The program that faults are put into, with its arguments, and the folder of its experiments."""

    program: Program
    arguments: tuple[str, ...]
    home: Path
    limit_s: float | None = None
    """Seconds that a trial may take from its fault on; None: as many as the golden run's time allows
    (time_limit.py)."""
    is_quiet: bool = True
    """True if the program's output is not shown."""
    has_guard: bool = False
    """True if the runs have the guard, which looks for hardware faults."""
    is_inference: bool = False
    """True if the program's steps are forward passes without gradients."""
    has_ranges: bool = False
    """True if the outputs of modules are clipped to their ranges in the golden run."""
    check: str = ""
    """The user's check of the program's state at its end: a command, or module:function."""
    metric: str = ""
    """The user's function (module:function) that returns a number for the program's end."""
    is_of_past: bool = field(default=False, init=False)
    """True if the program has changed since: the results in its folder can be read, but nothing can be run."""
    _seed: int = field(default=0, init=False)
    _sources: dict[str, str] = field(default_factory=dict, init=False)
    _is_looking: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.folder = self.home.absolute() / f"{self.program.name}.faults" / self.key[:16]
        self._own = [] if self.is_inference else self._entries_of_run()
        if self._own:
            self._seed = read_meta(self._own[-1].path).seed

    @property
    def _golden(self) -> Path:
        return self.folder / f"golden{'-guarded' if self.has_guard else ''}{'-ranges' if self.has_ranges else ''}"

    @property
    def key(self) -> str:
        """The digest of all that the golden run depends on: sources (detrain's, too), arguments, environment."""
        digest = xxhash.xxh3_128()
        for file in sorted(PACKAGE.rglob("*.py")):
            digest.update(xxhash.xxh3_128(file.read_bytes()).digest())
        for name, value in (*sorted(self.sources().items()), *sorted(self.environment().items())):
            digest.update(f"{name}={value}\n".encode())
        digest.update(msgspec.json.encode((self.arguments, "inference") if self.is_inference else self.arguments))
        info = self.home / INFO_NAME
        if info.is_file() and not info_owner(info):  # written by hand: other loops are other steps
            digest.update(info.read_bytes())
        return digest.hexdigest()

    def sources(self) -> dict[str, str]:
        """Return the digests of the program's source files, by their paths relative to the entry's folder."""
        from detrain.base.source_files import sources

        if not self._sources:  # each record asks for them
            entry = self.program.path.resolve()
            for file, _tree in sources(entry):
                name = Path(os.path.relpath(file, entry.parent)).as_posix()
                self._sources[name] = xxhash.xxh3_128(Path(file).read_bytes()).hexdigest()
        return self._sources

    def environment(self) -> dict[str, str]:
        """Return the settings outside of the program that decide about bits, by name."""
        return base_environment(threads_here())

    def sites(self, at: Address | None = None) -> list[Site]:
        """Return the sites of the program's first step, or of the step at a cursor; the program runs if need be."""
        known = self.sites_file(at)
        if known.is_file():
            return msgspec.json.decode(known.read_bytes(), type=list[Site])
        if at is None:
            messages.say(f"finding the sites of {self.program.name}: running its first step")
            with self.scratch() as home:
                done = self.run(Experiment(log=str(home / "log"), is_profile=True), home)
        else:
            self.golden(Experiment(log="", at=at, count=1))
            messages.say(f"finding the sites of {self.program.name} in step {written(at)}")
            done = self.trial(Experiment(log="", is_profile=True, at=at))
        if done.end == "profile" and not done.sites:
            raise FaultInvalid(
                f"the step has no value of a dtype that faults can be in: {', '.join(BITS)}",
                "let the program compute in one of these; a step of eager ops of TensorFlow that takes no gradient has none",
            )
        if not done.sites and done.status == 0 and self.is_inference:
            raise FaultInvalid(
                "the program has ended, and no loop of its own has computed scores without gradients",
                "evaluate in a loop: by a module under torch.no_grad(), or by a function under jax.jit that returns scores or "
                "takes their argmax",
            )
        if not done.sites:
            raise failed("ended before a step of its training loop was over", done)
        self.folder.mkdir(parents=True, exist_ok=True)
        if done.steps:
            _write(known.with_suffix(_WATCHED), msgspec.json.encode(done.steps[-1]))
        _write(known, msgspec.json.encode(list(done.sites)))
        return list(done.sites)

    @property
    def is_watched(self) -> bool:
        """True if ops are watched as they run, and only in the step that is hit: faults cost other steps nothing."""
        return any(self.folder.glob(f"sites*{_WATCHED}"))

    def require_apart(self, coming: Coming) -> None:
        """Raise FaultInvalid if several faults at once need an op each, and the program's step cannot give them one."""
        if coming.among == "step":
            self.sites()
            refuse_several(1 if self.is_watched else coming.at_once)

    def sites_file(self, at: Address | None) -> Path:
        """Return the path of the file for the sites of a step; None: of the first one."""
        return self.folder / (f"sites-{written(at).replace('/', '-').replace(':', '-')}.json" if at else "sites.json")

    def label_of(self, name: str) -> str:
        """Return the label of a listed site; its name if it is not listed."""
        files = sorted(self.folder.glob("sites*.json"))
        listed = (site for file in files for site in msgspec.json.decode(file.read_bytes(), type=list[Site]))
        return next((site.label for site in listed if site.name == name), name)

    def golden(self, plan: Experiment, *, has_step: bool = True) -> TrialResult:
        """Return the golden run, run at least as far as a trial goes, with checkpoints at its epochs.

        A golden run that goes far enough is not run again. Raises FaultInvalid if it lacks the trial's step, unless
        `has_step` is false.
        """
        home = self._golden
        log = home / "log"
        wanted = Experiment(log="") if self.has_ranges else plan  # ranges are those of the whole run
        start = (*wanted.at[:2], 0)
        done = read_log(log)
        if min(done.by_cursor(), default=start) > start:
            shutil.rmtree(home)
            done = read_log(log)
        if not _covers(done, wanted):
            home.mkdir(parents=True, exist_ok=True)
            if not Catalogue(home).entries():
                link(self._own, start, home)
            messages.say(f"golden run of {self.program.name}, without a fault")
            golden = msgspec.structs.replace(
                Experiment(log=str(log), at=wanted.at, until=wanted.until, count=wanted.count, has_checkpoints=True),
                notes_ranges=self.has_ranges,
            )
            done = self.run(golden, home, every="1")
        if not done.is_whole:
            raise failed("failed without any fault", done)
        steps = sorted(key for key in done.by_cursor() if key[2] >= 0)
        if not steps:
            raise failed("ended before a step of its training loop was over", done)
        if has_step and plan.at not in steps:  # behind the end, or it trains nothing (it fills a buffer)
            later = [key for key in steps if key > plan.at]
            where = f"the next is {written(later[0])}" if later else f"the last is {written(steps[-1])}"
            raise FaultInvalid(f"there is no step {written(plan.at)} that trains: {where}", "give another one")
        self._require_unchanged_by_watching(done)
        return done

    def whole(self, epoch: int = 0) -> TrialResult:
        """Return the golden run to the program's end, starting at the given epoch or earlier. Raises FaultInvalid."""
        return self.golden(Experiment(log="", at=(0, epoch, 0)), has_step=False)

    def _require_unchanged_by_watching(self, golden: TrialResult) -> None:
        """Raise FaultInvalid if a step whose ops were watched as they ran differs from the golden run's.

        If no watched step is one of the golden run's, the golden run's first is watched, too.
        """
        steps = golden.by_cursor()
        watched = self._watched()
        if watched and not steps.keys() & watched.keys() and not self._is_looking:
            self._is_looking = True
            self.sites(min(key for key in steps if key[2] >= 0))
            watched = self._watched()
        for at in sorted(steps.keys() & watched.keys()):
            then, now = steps[at], watched[at]
            if (then.state, then.series.get("loss")) != (now.state, now.series.get("loss")):
                raise FaultInvalid(
                    f"step {written(at)} gives other bits while its ops are watched, so a fault cannot be told from that",
                    "an op of it is computed in another way then (the gradients of prod and masked_fill are): replace it",
                )

    def _watched(self) -> dict[Address, StepLine]:
        lines = [msgspec.json.decode(file.read_bytes(), type=StepLine) for file in sorted(self.folder.glob(f"sites*{_WATCHED}"))]
        return {line.address: line for line in lines}

    def say(self, text: str) -> None:
        """Announce the run whose output follows, if output is shown."""
        if not self.is_quiet:
            messages.say(f"{text}:")

    def trial(self, experiment: Experiment, folder: Path | None = None, *, limit: TimeLimit | None = None) -> TrialResult:
        """Run an experiment from the checkpoint of the golden run that is nearest before its cursor.

        `limit`: how long it may take; None: the golden run's time decides.
        """
        with self.scratch(folder) as home, self._alone_with_files(experiment):
            self.link_golden((experiment.at[0], experiment.at[1], 0), home)
            return self.run(msgspec.structs.replace(experiment, log=str(home / "log")), home, limit=limit)

    @contextlib.contextmanager
    def _alone_with_files(self, experiment: Experiment) -> Iterator[None]:
        """Hold a lock during a run to the program's end if it writes files: they are read after it, so others wait."""
        is_whole = experiment.until is None and experiment.count is None and not experiment.is_profile
        if not is_whole or not (self.check or self.metric or read_log(self._golden / "log").files):
            yield
            return
        with (self.folder / _FILES_LOCK).open("ab") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield

    def golden_again(self, golden: TrialResult) -> TrialResult | None:
        """Return a second golden run, made if need be: differences between the two are no fault's doing.

        None if the program prints and writes nothing, and has no check or metric. Raises FaultInvalid if a step's bits
        differ, or if the user's check fails on it.
        """
        if not (golden.said or golden.files or self.check or self.metric):
            return None
        home = self._golden.with_name(f"{self._golden.name}-again")
        checked = home / _CHECKED
        again = self._measured_before(home)
        first = min(golden.by_cursor())
        is_checked = not self.check or (checked.is_file() and checked.read_text() == self.check)
        if again.end != golden.end or not is_checked or (self.metric and again.measured is None):
            messages.say(f"golden run of {self.program.name} again: what differs between two, no fault did")
            plan = Experiment(log="", at=(*first[:2], 0), until=None if golden.end == "program" else max(golden.by_cursor()))
            again = self.trial(plan, home)
            if self.check and again.check != PASSES:
                raise FaultInvalid(
                    f"the check {self.check!r} fails on a run without a fault: {again.error}",
                    "it has to pass there: status 0, or true",
                )
            checked.write_text(self.check)
        known = golden.by_cursor()
        differing = sorted(at for at, step in again.by_cursor().items() if at not in known or not is_as(known[at], step))
        if differing or not again.is_whole:
            where = f"from step {written(differing[0])} on" if differing else f"in its end ({again.end or again.status})"
            raise FaultInvalid(
                f"a second run without a fault is another one {where}: a fault cannot be told from that",
                "see what differs: detrain verify",
            )
        return again

    def _limit_of(self, experiment: Experiment) -> TimeLimit:
        if experiment.injection is None or not experiment.is_armed:
            return TimeLimit()
        return limit_of(experiment, read_log(self._golden / "log"), self.limit_s)

    def golden_with_seed(self, number: int, golden: TrialResult, words: str) -> TrialResult:
        """Return a golden run with another seed, as far as the golden run goes; it is made if need be.

        `words` are put behind the program's arguments, with the seed for {}. The seed is also that of `detrain run
        --seed`; without `words`, seeds that the program sets itself are greater by `number`. Raises FaultInvalid if
        the run fails.
        """
        seed = self._seed + number
        added = tuple(word.replace("{}", str(seed)) for word in shlex.split(words))
        name = xxhash.xxh3_64_hexdigest(msgspec.json.encode(added))[:8] if added else "own"
        home = self._golden.with_name(f"{self._golden.name}-seed-{number}-{name}")
        done = self._measured_before(home)
        if done.end != golden.end or (self.metric and done.measured is None):
            messages.say(f"golden run of {self.program.name} with seed {seed}")
            plan = Experiment(
                log=str(home / "log"),
                until=None if golden.end == "program" else max(golden.by_cursor()),
                has_digests=bool(self.metric),  # to take digests, the run learns the variables that --metric needs
                seeds_by=0 if added else number,
            )
            with self.scratch(home), self._alone_with_files(plan):
                done = self.run(plan, home, seed=seed, added=added)
        if not done.is_whole:
            raise failed(f"failed without any fault, with seed {seed}", done)
        return done

    def unarmed(self, experiment: Experiment) -> TrialResult:
        """Run a trial with its site in place, but with no fault armed."""
        self.say("the run with the site in place, and no fault")
        done = self.trial(msgspec.structs.replace(experiment, is_armed=False))
        if experiment.at not in done.by_cursor():
            raise failed("failed with the site in place and no fault", done)
        return done

    def link_golden(self, before: Address, home: Path) -> None:
        """Put the checkpoints of the golden run up to a cursor into another home."""
        link([entry for entry in Catalogue(self._golden).entries() if entry.cursor.cut in ("epoch", "end")], before, home)

    def start_of(self, at: Address) -> Path | None:
        """Return the checkpoint from which a trial at a cursor starts; None: it starts at the program's beginning."""
        golden = [entry for entry in Catalogue(self._golden).entries() if entry.cursor.cut in ("epoch", "end")]
        before = up_to(golden, (at[0], at[1], 0))
        return before[-1].path if before else None

    def run(
        self,
        experiment: Experiment,
        home: Path,
        *,
        every: str = _NEVER,
        settings: Mapping[str, str] | None = None,
        seed: int | None = None,
        added: Sequence[str] = (),
        limit: TimeLimit | None = None,
    ) -> TrialResult:
        """Run the program with an experiment in a checkpoint home; `added`: further arguments of the program."""
        with self.process([experiment], home, every=every, settings=settings, seed=seed, added=added) as process:
            limit = limit or self._limit_of(experiment)
            watch = Watch(home / "log", limit)
            status: int | None = None
            while status is None:
                try:
                    status = process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    if watch.is_late():
                        process.kill()
                        process.wait()
                        status = HANG
        done = read_log(home / "log")
        crash = done.end.partition(": ")[2] if status == 1 and done.end.startswith("crash") else ""
        done = msgspec.structs.replace(done, status=status, end=done.end if status == 0 else "", error=errors_of(home), crash=crash)
        if not done.is_whole and status != HANG:
            require_room(home, status, done.error)
        variables = home / f"log{VARIABLES_SUFFIX}"
        if self.check and experiment.is_armed and done.end == "program" and variables.is_file():
            verdict, said = run_check(self.check, variables, self.limit_s or _CHECK_S)
            done = msgspec.structs.replace(done, check=verdict, error=said)
        if self.metric and experiment.is_armed and done.end == "program" and variables.is_file():
            done = msgspec.structs.replace(done, measured=measured_by(self.metric, variables, self.limit_s or _CHECK_S))
            (home / _MEASURED).write_bytes(msgspec.json.encode((self.metric, float(done.measured or 0).hex())))
        variables.unlink(missing_ok=True)
        return done

    def _measured_before(self, home: Path) -> TrialResult:
        """Return the result that an earlier run left, with the number that the user's function gave for it."""
        done = read_log(home / "log")
        try:
            metric, number = msgspec.json.decode((home / _MEASURED).read_bytes(), type=tuple[str, str])
        except (OSError, msgspec.DecodeError):
            return done
        return msgspec.structs.replace(done, measured=float.fromhex(number)) if metric == self.metric else done

    @contextlib.contextmanager
    def process(
        self,
        experiments: Sequence[Experiment],
        home: Path,
        *,
        every: str = _NEVER,
        settings: Mapping[str, str] | None = None,
        seed: int | None = None,
        added: Sequence[str] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start the program with experiments in a checkpoint home; an exception in the context ends it.

        Raises FaultInvalid if the program has changed since.
        """
        if self.is_of_past:
            raise FaultInvalid(f"{self.program.name} is another program now, and has to be run for this", "give it as it was")
        self._share_structure(home)
        plan = home / "experiment.json"
        experiments = [msgspec.structs.replace(each, is_inference=self.is_inference) for each in experiments]
        _write(plan, msgspec.json.encode(experiments))
        arguments = ["--ckpt", str(home), "--every", every, "--keep", _ALL, "--on-sigterm", "ignore"]
        if self.has_guard:
            arguments += ["--guard", "detect"]
        if not Catalogue(home).entries():
            arguments += ["--seed", str(self._seed if seed is None else seed), "--fresh"]
        command = [sys.executable, "-m", "detrain", "run", *arguments, *(["-m"] if self.program.is_module else [])]
        keeps = {KEEPS_VARIABLES: "1"} if (self.check or self.metric) and not experiments[0].has_checkpoints else {}
        environment = {**for_runs_of_ours(), **(settings or {}), **keeps, VARIABLE: str(plan)}
        with contextlib.ExitStack() as files:  # the process reads its program's output there
            stdout, stderr = (files.enter_context((home / name).open("w+b")) for name in (_OUTPUT, _ERRORS))
            process = subprocess.Popen(
                [*command, self.program.shown, *self.arguments, *added],
                env=environment,
                stdout=stdout if self.is_quiet else None,
                stderr=stderr,
                preexec_fn=dying_with_this(dies_first=True),  # noqa: PLW1509  there are no other threads of Python here
            )
        try:
            yield process
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise

    def _share_structure(self, home: Path) -> None:
        """Give a run the loops that are known from the golden run, or from the user: it need not find them anew."""
        folders = (self._golden,) if self.is_inference else (self._golden, self.home)
        known = [folder / INFO_NAME for folder in folders if (folder / INFO_NAME).is_file()]
        if known and not (home / INFO_NAME).exists():
            shutil.copyfile(known[0], home / INFO_NAME)
        elif self.is_inference and not (home / INFO_NAME).exists():  # the run must find the loops of inference itself
            none = Structure((), "static analysis", program=self.program.name)
            write_info(none, home / INFO_NAME, self.program.path.parent)

    @contextlib.contextmanager
    def scratch(self, folder: Path | None = None) -> Iterator[Path]:
        """Yield an empty checkpoint home: the given folder, which stays, or a temporary one, which is deleted."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            yield folder
            return
        with scratch_folder(self.folder, "trial-") as home:
            yield home

    def _entries_of_run(self) -> list[Entry]:
        """Return the checkpoints of the program's newest run with these arguments and this source, if there is one."""
        entries = [entry for entry in Catalogue(self.home).entries() if entry.program == self.program.name]
        mine = [entry for entry in entries if entry.run == entries[-1].run]
        try:
            meta = read_meta(mine[-1].path) if mine else None
        except DetrainError:
            return []
        if meta is None or tuple(meta.arguments) != self.arguments or self.program.changed_sources(meta.sources):
            return []
        return mine


def errors_of(home: Path) -> str:
    """Return the last 12 lines that a process wrote to stderr."""
    return "\n".join((home / _ERRORS).read_text(errors="replace").splitlines()[-12:])


def _covers(done: TrialResult, plan: Experiment) -> bool:
    """Return whether a golden run goes as far as a trial."""
    if not done.steps or done.end == "program":
        return bool(done.steps)
    steps = done.by_cursor()
    after = sum(cursor >= plan.at and cursor[2] >= 0 for cursor in steps)
    return plan.until in steps or (plan.until is None and plan.count is not None and after >= plan.count)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
