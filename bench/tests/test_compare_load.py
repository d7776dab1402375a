"""Tests of what scripts/compare reads of a run. No broker is needed."""

import copy
import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from compare import figures, load, options, processes  # noqa: E402

LATENCY = {"count": 5, "mean": 900.0, "p50": 800.0, "p75": 900.0, "p90": 1000.0, "p99": 5000.0, "p999": 6000.0, "p9999": 7000.0, "max": 8000.0}
RESULT = {
    "schema": 1, "kind": "run", "generator": "vela-bench 0.1.0", "scenario": "iot", "settings": {"rate": 20_000}, "valid": True, "interrupted": False, "faults": [],
    "seconds": 10.0,
    "publish": {"messages": 200_000, "messages_per_second": 20_000.0, "latency_us": LATENCY},
    "delivery": {"messages": 200_000, "messages_per_second": 20_000.0, "latency_us": LATENCY},
    "broker": {"cpu_seconds": 5.0, "cpu_seconds_per_million": 25.0, "cpu_cores": 0.5, "rss": {"max": 9 << 20}, "retained": {"max": 4096}, "throttled": {"samples": 10, "nonzero": 0}},
    "own": {"cpu_seconds": 2.0, "cpu_seconds_per_million": 10.0, "rss_max": 1 << 20}, "series": [],
}


def changed(**fields):
    return {**copy.deepcopy(RESULT), **fields}


class Reading(unittest.TestCase):
    def test_a_valid_run(self):
        result = load.read(RESULT)
        self.assertEqual((result.state, result.reason), (figures.VALID, ""))
        for name, value in (("offered", 20_000), ("achieved", 20_000), ("publish_p99", 5.0), ("delivery_p50", 0.8), ("broker_share", 0.5), ("load_share", 0.2),
                            ("rss", 9 << 20), ("throttled_samples", 0)):
            self.assertEqual(result.figures[name], value, name)

    def test_an_invalid_or_interrupted_run_says_why(self):
        result = load.read(changed(valid=False, faults=["2 messages lost", "1 duplicate"]))
        self.assertEqual((result.state, result.reason), (figures.INVALID, "2 messages lost; 1 duplicate"))
        self.assertEqual(load.read(changed(valid=False, interrupted=True, faults=["interrupted"])).state, figures.INTERRUPTED)

    def test_what_was_not_measured_stays_unknown(self):
        broker = {"cpu_seconds": None, "cpu_seconds_per_million": None, "cpu_cores": None, "rss": None, "retained": None, "throttled": None}
        result = load.read(changed(broker=broker, delivery=None, settings={"rate": 0}))
        for name in ("offered", "broker_cpu", "broker_share", "rss", "retained", "throttled_samples", "delivery_p99", "delivered"):
            self.assertIsNone(result.figures[name], name)

    def test_something_else_is_refused(self):
        for other in (changed(kind="publish"), changed(schema=2)):
            with self.assertRaises(processes.Unable):
                load.read(other)


class Running(unittest.TestCase):
    """With a shell script in the place of the load generator."""

    def run_script(self, text):
        directory = pathlib.Path(tempfile.mkdtemp())
        script = directory / "bench"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        args = types.SimpleNamespace(scenario="iot", vela_bench=script, load_cpu="1", broker_cpu="0", run_arguments=[], warmup=1, duration=2)
        server = types.SimpleNamespace(url="pulsar://127.0.0.1:1", web_url="http://127.0.0.1:2", pid=7, metrics=True)
        return load.run(args, server, 500, directory / "r"), (directory / "r.out").read_text()

    def test_flags_and_result(self):
        result, said = self.run_script(f"echo \"$@\"; while [ \"$1\" != --out ]; do shift; done; cat >\"$2\" <<'END'\n{json.dumps(RESULT)}\nEND")
        self.assertEqual(result.state, figures.VALID)
        self.assertIn("run iot --url pulsar://127.0.0.1:1 --cpu 1 ", said)
        self.assertIn("--broker-pid 7 --metrics-url http://127.0.0.1:2/metrics --rate 500 --warmup 1 --duration 2", said)

    def test_a_run_that_cannot_be_carried_out_failed(self):
        result, _ = self.run_script("echo 'cannot connect' >&2; exit 1")
        self.assertEqual(result.state, figures.FAILED)
        self.assertIn("cannot connect", result.reason)

    def test_a_result_that_cannot_be_read_failed(self):
        result, _ = self.run_script("while [ \"$1\" != --out ]; do shift; done; echo '{\"kind\":\"run\",\"schema\":1}' >\"$2\"")
        self.assertEqual(result.state, figures.FAILED)


class Options(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(options.read(["iot"]).rates, [])
        args = options.read(["--peer", "apache-pulsar", "iot"])
        self.assertEqual((args.rates, args.journal_sync, args.settle_limit), ([10_000, 20_000], "on", 120))
        self.assertEqual(options.read(["--quick", "iot", "--duration", "5"]).duration, 5)

    def test_syncing_is_the_same_on_both_sides(self):
        self.assertEqual(options.read(["--peer", "apache-pulsar", "--sync", "never", "iot"]).journal_sync, "off")


if __name__ == "__main__":
    unittest.main()
