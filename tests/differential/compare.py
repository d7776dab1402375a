"""Compares two brokers as a user of them sees them, step by step.

    compare.py --left pulsar://127.0.0.1:6650 http://127.0.0.1:8080 --vela BINARY [--seeds N] [--kill] [NAME...]

Needs pulsar-client and fastavro. Ends with 1 if anything differs; what differs on purpose is in docs/compatibility.md. The scenarios
make topics and namespaces in tenant public, and leave them."""

import argparse
import inspect
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from broker_process import BrokerProcess, free_port  # noqa: E402
from harness import Both, Side, diff_json  # noqa: E402


def scenarios():
    import importlib
    found = {}
    for file in sorted(Path(__file__).resolve().parent.glob("scenarios_*.py")):
        module = importlib.import_module(file.stem)
        for name, thing in vars(module).items():
            if inspect.isfunction(thing) and thing.__module__ == file.stem and not name.startswith("_") and list(inspect.signature(thing).parameters) == ["both"]:
                found[name] = thing
    return found


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--left", nargs=2, required=True, metavar=("URL", "ADMIN"), help="the broker to compare with")
    options.add_argument("--right", nargs=2)
    options.add_argument("--vela")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=6)
    options.add_argument("--kill", action="store_true", help="kill -9 Vela where topics are unloaded; one scenario at a time")
    options.add_argument("--trail", action="store_true", help="say every step")
    options.add_argument("names", nargs="*")
    chosen = options.parse_args()
    left = Side("pulsar", *chosen.left)
    process = None
    if chosen.right:
        right = Side("vela", *chosen.right)
    else:
        directory = Path(tempfile.mkdtemp(prefix="vela-diff-"))
        process = BrokerProcess(chosen.vela, directory / "data", directory / "log", cores=2, port=free_port(), web_port=free_port(), arguments=["--broker-delete-inactive-topics-enabled", "false"]).start()
        right = Side("vela", process.url, process.admin, process)
        print("vela", process.url, process.admin, directory)
    every = scenarios()
    runs = [(name, seed) for name in every if not chosen.names or any(n in name for n in chosen.names)
            for seed in range(chosen.seed, chosen.seed + (chosen.seeds if getattr(every[name], "seeded", False) else 1))]

    def run(job):
        name, seed = job
        began = time.monotonic()
        both = Both([left, right], seed, name.replace("_", "-"), kill=chosen.kill)
        failed = None
        try:
            every[name](both)
        except Exception:
            failed = traceback.format_exc()
        both.close()
        return name, seed, both, failed, time.monotonic() - began

    steps = bad = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, seed, both, failed, took in (map if chosen.kill else pool.map)(run, runs):
            steps += both.steps
            print(f"{'ok  ' if not both.differences and not failed else 'DIFF'} {name} seed {seed}: {both.steps} steps, {took:.1f} s", flush=True)
            bad += bool(both.differences or failed)
            for label, a, b, trail in both.differences:
                print(f"   ≠ {label}")
                for line in (diff_json(a, b) or ["?"])[:30]:
                    print(f"        {line}")
                for line in trail if getattr(every[name], "seeded", False) else []:
                    print(f"        | {line}")
            if failed:
                print(failed)
            if chosen.trail:
                print("\n".join(f"        {step}" for step in both.trail))
    print(f"{len(runs)} scenarios, {steps} steps, {bad} with differences")
    if process:
        if not process.running:
            print("THE BROKER ENDED", process.log())
        process.stop()
    sys.exit(bool(bad))


main()
