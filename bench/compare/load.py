"""Runs `vela-bench run` and reads its result (bench/README.md says what stands in it)."""

import json
import pathlib
import signal
from dataclasses import dataclass, field

from .figures import FAILED, INTERRUPTED, INVALID, VALID
from .processes import Process, Unable, cpu_list

SCHEMA = 1
# Beyond warm-up and measured time: connecting, waiting for what is outstanding, draining a backlog.
GRACE_SECONDS = 300


@dataclass
class Result:
    state: str
    reason: str = ""
    figures: dict = field(default_factory=dict)


def command(args, server, rate, output, warmup, duration):
    """`rate` None, and times None: what the scenario says."""
    scenario = ["--file", args.scenario] if args.scenario.endswith(".toml") else [args.scenario]
    words = [args.vela_bench, "run", *scenario, "--url", server.url, "--cpu", args.load_cpu, "--out", f"{output}.json", "--hdr", output]
    web = server.web_url if server.metrics else None
    for flag, value in (("--broker-pid", server.pid), ("--metrics-url", web and f"{web.rstrip('/')}/metrics"), ("--rate", rate), ("--warmup", warmup),
                        ("--duration", duration)):
        if value is not None:
            words += [flag, str(value)]
    return [*words, *args.run_arguments]


def run(args, server, rate, output, warmup=None, duration=None):
    """One run to its end. `output` is the stem of its files."""
    warmup = args.warmup if warmup is None else warmup
    duration = args.duration if duration is None else duration
    process = Process(command(args, server, rate, output, warmup, duration), output)
    try:
        code = process.wait((60 if warmup is None else warmup) + (120 if duration is None else duration) + GRACE_SECONDS)
    finally:
        # Interrupted itself, it writes what it has.
        process.stop(signal.SIGINT)
    file = pathlib.Path(f"{output}.json")
    if code is None:
        return Result(FAILED, f"vela-bench run did not end; its files are {output}.*")
    if code not in (0, 3) or not file.exists():
        return Result(FAILED, f"vela-bench run ended with {code}: {process.last_words(3)}")
    try:
        return read(json.loads(file.read_text()), len(cpu_list(args.broker_cpu)), len(cpu_list(args.load_cpu)))
    except (ValueError, KeyError, TypeError) as error:
        return Result(FAILED, f"{file} is not a result that can be read: {error!r}")


def read(result, broker_cpus=1, load_cpus=1):
    """Result of a run as state, reason and figures; latencies in milliseconds."""
    if result.get("kind") != "run" or result.get("schema") != SCHEMA:
        raise Unable(f"a result of kind {result.get('kind')!r} and schema {result.get('schema')!r}, not 'run' and {SCHEMA}")
    faults = result["faults"]
    state = INTERRUPTED if result["interrupted"] else VALID if result["valid"] else INVALID
    publish, delivery, broker, own = result["publish"], result["delivery"] or {}, result["broker"], result["own"]
    numbers = {"offered": result["settings"]["rate"] or None, "achieved": publish["messages_per_second"],
               "delivered": delivery.get("messages_per_second"), "broker_cpu": broker["cpu_seconds_per_million"],
               "broker_share": share(broker["cpu_cores"], broker_cpus), "load_cpu": own["cpu_seconds_per_million"],
               "load_share": share(own["cpu_seconds"] / result["seconds"] if result["seconds"] else None, load_cpus)}
    for side, latencies in (("publish", publish["latency_us"]), ("delivery", delivery.get("latency_us"))):
        for name in ("p50", "p90", "p99", "p999", "p9999", "max"):
            numbers[f"{side}_{name}"] = latencies[name] / 1000 if latencies else None
    numbers["rss"] = (broker["rss"] or {}).get("max")
    numbers["retained"] = (broker["retained"] or {}).get("max")
    numbers["throttled_samples"] = (broker["throttled"] or {}).get("nonzero")
    return Result(state, "; ".join(faults[:3]), numbers)


def share(used, cpus):
    return None if used is None else used / cpus
