"""What can be typed."""

import argparse
import pathlib
import shlex
import time

from .processes import Unable, cpu_list

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITER = ("disabled", "tracking", "auto", "enabled")
PULSAR = "apache-pulsar"
# Rates at which a JVM peer on one core is not, and is, saturated.
PEER_RATES = {"iot": "10000,20000", "large-messages": "250,500"}

DESCRIPTION = """Compares variants of a broker with the same load: one core for the broker, another for the load, in turn, in rotated order.

    scripts/compare iot                               the four modes of Vela's memory limiter
    scripts/compare --peer apache-pulsar iot          Vela and Apache Pulsar 5.0.1 (needs Maven and Java 21 or newer)
    scripts/compare --peer pulsar://HOST:PORT iot     Vela and a broker that runs already

Each turn starts a broker with an empty data directory, warms it up, measures it at each rate and stops it. Printed and written to the output
directory: a table of medians [least - most], everything of every run, a manifest, and one HTML page. Only valid runs count; the others are
listed. Ctrl-C stops all processes and leaves a valid result of what was done until then.

Exit code: 0 if all runs are valid, 1 if something could not be carried out, 2 for wrong arguments, 3 if a run was invalid, 130 if interrupted.
"""

SATURATED = """A run is saturated if less than 99 % of the offered messages were done, or if the publish p99, counted from when each message was due,
is above --saturation-p99. The side (broker, load) that used 90 % of its core or more is named; 'unknown' if neither did (a disk, or others on the machine)."""


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def seconds(text):
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to 86400")
    return value


def rates(text):
    return [positive(part) for part in text.split(",")] if text else []


def parser():
    p = argparse.ArgumentParser(prog="scripts/compare", description=DESCRIPTION, epilog=SATURATED, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("scenario", help="scenario of vela-bench run, such as iot or large-messages")
    p.add_argument("--peer", metavar="PEER", help=f"{PULSAR}, or the URL of a running broker (pulsar://HOST:PORT); without it Vela's limiter modes are compared")
    p.add_argument("--variants", default=",".join(LIMITER), metavar="LIST", help="limiter modes to compare (default: %(default)s)")
    p.add_argument("--rates", type=rates, metavar="LIST",
                   help="messages per second to offer (default: the scenario's; with --peer 10000,20000 for iot and 250,500 for large-messages)")
    p.add_argument("--runs", type=positive, default=3, metavar="N", help="repetitions of each variant (default: %(default)s)")
    p.add_argument("--warmup", type=seconds, metavar="SECONDS", help="load before each measurement (default: the scenario's)")
    p.add_argument("--duration", type=seconds, metavar="SECONDS", help="measured time of each run (default: the scenario's)")
    p.add_argument("--quick", action="store_true", help="at most about ten minutes: --warmup 4 --duration 15 and a warm-up of a JVM of 60 s at most")
    p.add_argument("-o", "--output", type=pathlib.Path, metavar="DIR", help="new directory of the results (default: target/compare/SCENARIO-TIME)")
    p.add_argument("--broker-cpu", default="0", metavar="LIST", help="processors of the broker (default: %(default)s)")
    p.add_argument("--load-cpu", default="1", metavar="LIST", help="processors of the load (default: %(default)s)")
    p.add_argument("--saturation-p99", type=float, default=250, metavar="MS", help="publish p99 above which messages queue (default: %(default)s)")

    vela = p.add_argument_group("Vela")
    vela.add_argument("--sync", choices=("always", "interval", "never"), default="always", help="when Vela's messages count as on disk (default: %(default)s)")
    vela.add_argument("--vela-arguments", default="", metavar="TEXT", help="further arguments of `vela broker`, as one word")
    vela.add_argument("--vela", type=pathlib.Path, metavar="PATH", help="a broker built before (default: build it, release)")
    vela.add_argument("--vela-bench", type=pathlib.Path, metavar="PATH", help="a load generator built before (default: build it, release)")

    peer = p.add_argument_group("peer")
    peer.add_argument("--journal-sync", choices=("on", "off"), help=f"whether {PULSAR}'s bookie syncs its journal (default: on; off with --sync never)")
    peer.add_argument("--heap", metavar="SIZE", help=f"heap of {PULSAR} (default: that of its start script)")
    peer.add_argument("--direct", metavar="SIZE", help=f"direct memory of {PULSAR} (default: that of its start script)")
    peer.add_argument("--peer-arguments", default="", metavar="TEXT", help="further arguments of the peer's start script, as one word")
    peer.add_argument("--peer-web", metavar="URL", help="HTTP address of a running broker, for /metrics")
    peer.add_argument("--peer-pid", type=positive, metavar="PID", help="process of a running broker on this machine: its CPU and memory are measured")
    peer.add_argument("--settle-window", type=seconds, default=10, metavar="SECONDS", help="length of a window of the JVM's warm-up (default: %(default)s)")
    peer.add_argument("--settle-within", type=float, default=0.05, metavar="SHARE",
                      help="the warm-up ends when CPU per message changes by less over three windows, from each to the next (default: %(default)s)")
    peer.add_argument("--settle-limit", type=seconds, metavar="SECONDS", help="longest warm-up; what has not settled by then is marked (default: 120)")
    p.add_argument("--run-arguments", default="", metavar="TEXT", help="further arguments of `vela-bench run`, as one word")
    return p


def read(arguments=None):
    p = parser()
    args = p.parse_args(arguments)
    args.variants = args.variants.split(",")
    unknown = [variant for variant in args.variants if variant not in LIMITER]
    if unknown or len(set(args.variants)) != len(args.variants):
        p.error(f"--variants: each of {', '.join(LIMITER)} at most once, not {','.join(args.variants)}")
    if args.peer and args.peer != PULSAR and not args.peer.startswith("pulsar://"):
        p.error(f"--peer {args.peer}: it is neither {PULSAR} nor a URL such as pulsar://127.0.0.1:6650")
    for name in ("vela_arguments", "peer_arguments", "run_arguments"):
        setattr(args, name, shlex.split(getattr(args, name)))
    try:
        broker, load = cpu_list(args.broker_cpu), cpu_list(args.load_cpu)
    except Unable as problem:
        p.error(str(problem))
    if broker & load:
        p.error(f"--broker-cpu {args.broker_cpu} and --load-cpu {args.load_cpu} share processors: broker and load would take each other's time")
    if args.rates is None:
        args.rates = rates(PEER_RATES.get(args.scenario, "")) if args.peer else []
    if args.quick:
        args.warmup = 4 if args.warmup is None else args.warmup
        args.duration = 15 if args.duration is None else args.duration
        args.settle_limit = 60 if args.settle_limit is None else args.settle_limit
    if args.settle_limit is None:
        args.settle_limit = 120
    if args.journal_sync is None:
        args.journal_sync = "off" if args.sync == "never" else "on"
    if args.output is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        args.output = ROOT / "target" / "compare" / f"{pathlib.Path(args.scenario).stem}-{stamp}"
    return args
