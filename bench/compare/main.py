"""The course of a comparison."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

from . import brokers, figures, load, manifest, options, plan, table
from .processes import Unable, cpu_list

FAILED, INVALID, INTERRUPTED = 1, 3, 130
# Of each window of a JVM's warm-up, not counted: connecting and making topics is not what settles.
WINDOW_LEAD = 2


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception: nothing but the end may catch it."""


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


def on_signals():
    def interrupt(number, _):
        # One is enough: stopping must not be cut short by another.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupt)


def build(args):
    """Programs to run: those named, or built now. Answers which were built."""
    wanted = [crate for crate, path in (("vela-broker", args.vela), ("vela-bench", args.vela_bench)) if path is None]
    if wanted:
        say("building " + " and ".join(wanted))
        command = ["cargo", "build", "--release", "--locked", *(part for crate in wanted for part in ("-p", crate))]
        try:
            done = subprocess.run(command, cwd=options.ROOT, stdout=sys.stderr)
        except OSError:
            raise Unable("there is no cargo to build with; install Rust, or name programs with --vela and --vela-bench") from None
        if done.returncode:
            raise Unable(f"building failed (exit code {done.returncode})")
    target = options.ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "x86_64-unknown-linux-gnu" / "release"
    args.vela, args.vela_bench = (args.vela or target / "vela").resolve(), (args.vela_bench or target / "vela-bench").resolve()
    for path in (args.vela, args.vela_bench):
        if not os.access(path, os.X_OK):
            raise Unable(f"{path} is not a program that can be run")
    return {"vela-broker" in wanted and "vela", "vela-bench" in wanted and "vela-bench"}


class Comparison:
    def __init__(self, args, facts):
        self.args, self.facts, self.runs = args, facts, []
        self.turns = plan.turns(brokers.variants(args), args.runs, args.rates)
        self.planned = sum(len(turn.rates) for turn in self.turns)
        self.work = args.output / "work"

    def carry_out(self):
        for number, turn in enumerate(self.turns):
            say(f"turn {number + 1} of {len(self.turns)}: {turn.variant}, repetition {turn.repetition}")
            self.turn(turn)

    def turn(self, turn):
        done = len(self.runs)
        try:
            broker = brokers.Broker(self.args, turn.variant, self.work / turn.name(None))
            try:
                self.facts["brokers"].setdefault(turn.variant, broker.manifest)
                notes = self.warm_up(turn, broker) if broker.has_jit else []
                for rate in turn.rates:
                    self.measure(turn, rate, broker, notes)
            finally:
                broker.stop()
        except Unable as problem:
            # The others go on: what this turn did not come to is listed as failed.
            say(f"  {problem}")
            for rate in turn.rates[len(self.runs) - done:]:
                self.add(figures.Run(turn.variant, rate, turn.repetition, figures.FAILED, str(problem)))

    def warm_up(self, turn, broker):
        """Windows of load at the highest rate until the cost of a message stays the same. Answers what has to be noted of it."""
        rate, costs, began = turn.rates[-1], [], time.monotonic()
        while not plan.settled(costs, self.args.settle_within):
            if time.monotonic() - began + WINDOW_LEAD + self.args.settle_window > self.args.settle_limit:
                say(f"  not settled after {time.monotonic() - began:.0f} s")
                break
            name = f"warm-up-{turn.name(None)}-{len(costs) + 1}"
            result = load.run(self.args, broker.server, rate, self.args.output / name, warmup=WINDOW_LEAD, duration=self.args.settle_window)
            broker.check()
            cost = result.figures.get("broker_cpu")
            say(f"  warm-up window {len(costs) + 1}: {cost and round(cost, 2)} CPU s per million messages{'' if result.state == figures.VALID else ' (' + result.reason + ')'}")
            if cost is None:
                break
            costs.append(cost)
        settled = plan.settled(costs, self.args.settle_within)
        self.facts["warm_ups"].append({"turn": turn.name(None), "rate": rate, "seconds": round(time.monotonic() - began, 1), "settled": settled,
                                       "cpu_seconds_per_million": [round(cost, 3) for cost in costs]})
        return [] if settled else ["JIT not settled"]

    def measure(self, turn, rate, broker, notes):
        name = turn.name(rate)
        run = figures.Run(turn.variant, rate, turn.repetition, figures.INTERRUPTED, "ended before it was complete", notes=notes)
        before = manifest.load_average()
        try:
            broker.check()
            result = load.run(self.args, broker.server, rate, self.args.output / name)
            run.state, run.reason, run.figures, run.file = result.state, result.reason, result.figures, f"{name}.json"
            if run.state != figures.FAILED:
                broker.check()
        except Unable as problem:
            run.state, run.reason = figures.FAILED, str(problem)
        finally:
            run.figures["load_average_before"] = before[0]
            self.add(run)
        achieved, cost, p99 = (run.figures.get(key) for key in ("achieved", "broker_cpu", "publish_p99"))
        shown = [f"{value:,.{digits}f} {unit}" for value, digits, unit in ((achieved, 0, "msg/s"), (cost, 2, "CPU s/M"), (p99, 2, "ms publish p99")) if value is not None]
        say(f"  {turn.variant}{f' at {rate:,}/s' if rate else ''}: {run.state}{': ' + run.reason if run.reason else ''}  {', '.join(shown)}")

    def add(self, run):
        self.runs.append(run)
        self.save()

    def save(self):
        """All that is known so far, so that whatever happens next leaves a whole file."""
        args, limit = self.args, self.args.saturation_p99
        cells = []
        for (variant, rate), group in figures.cells(self.runs).items():
            cell = figures.summary(group, limit)
            cell["figures"] = {name: value and dataclasses.asdict(value) for name, value in cell["figures"].items()}
            cells.append({"variant": variant, "rate": rate, **cell})
        whole = {
            "kind": "vela-bench comparison", "scenario": args.scenario, "complete": len(self.runs) == self.planned,
            "valid": figures.all_valid(self.runs, self.planned), "planned_runs": self.planned, "saturation_p99_ms": limit,
            "cells": cells, "runs": [dataclasses.asdict(run) for run in self.runs], "manifest": self.facts,
        }
        part = args.output / "results.json.part"
        part.write_text(json.dumps(whole, indent=1) + "\n")
        part.rename(args.output / "results.json")

    def finish(self, interrupted):
        self.facts["ended"], self.facts["load_average_after"] = manifest.now(), manifest.load_average()
        self.facts["interrupted"] = interrupted
        self.save()
        rows = table.rows(self.runs, self.args.saturation_p99)
        left_out = table.exclusions(self.runs)
        missing = self.planned - len(self.runs)
        notes = ("\nNot counted:\n" + left_out if left_out else "") + (f"\n{missing} of {self.planned} runs were not begun.\n" if missing else "")
        notes += "".join(f"\n{run.variant}, repetition {run.repetition}: {note}\n" for run in self.runs for note in run.notes)
        (self.args.output / "table.md").write_text(table.markdown(rows) + notes)
        print(table.plain(rows) + notes, end="")
        self.page()
        say(f"everything is in {self.args.output}")

    def page(self):
        done = subprocess.run([self.args.vela_bench, "report", self.args.output, "-o", self.args.output / "page.html"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode:
            say(f"no page: vela-bench report ended with {done.returncode} {done.stderr.strip()}")


def prepare(args):
    if args.output.exists() and any(args.output.iterdir()):
        raise Unable(f"{args.output} is not empty; results go to a new directory (-o)")
    allowed = os.sched_getaffinity(0)
    wanted = cpu_list(args.broker_cpu) | cpu_list(args.load_cpu)
    if not wanted <= allowed:
        raise Unable(f"processors {sorted(wanted - allowed)} may not be used here, only {sorted(allowed)}; see --broker-cpu and --load-cpu")
    built = build(args)
    if args.peer == options.PULSAR:
        fetch = [options.ROOT / "bench" / "peers" / options.PULSAR / "start", "--fetch"]
        if subprocess.run(fetch, stdout=sys.stderr).returncode:
            raise Unable(f"the programs of {options.PULSAR} could not be had; the words above say why")
    args.output.mkdir(parents=True, exist_ok=True)
    args.output = args.output.resolve()
    facts = manifest.begin(options.ROOT, args.output)
    facts["binaries"] = {path.name: manifest.binary(path, path.name in built) for path in (args.vela, args.vela_bench)}
    facts["options"] = {name: value if isinstance(value, (int, float, list, type(None))) else str(value) for name, value in vars(args).items()}
    facts["brokers"], facts["warm_ups"] = {}, []
    return facts


def main():
    args = options.read()
    on_signals()
    comparison, interrupted = None, None
    try:
        comparison = Comparison(args, prepare(args))
        comparison.carry_out()
    except Unable as problem:
        say(str(problem))
        return FAILED
    except Interrupted as signal_name:
        interrupted = str(signal_name)
        say(f"{interrupted}: everything is stopped")
    if comparison:
        comparison.finish(interrupted)
    if interrupted:
        return INTERRUPTED
    return 0 if figures.all_valid(comparison.runs, comparison.planned) else INVALID
