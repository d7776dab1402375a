"""The whole course of scripts/compare, with programs that only pretend to be a broker and a load generator."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
COMPARE = HERE.parents[1] / "scripts" / "compare"
# Generous: a busy machine is slow, not wrong.
DEADLINE = 120


class Course(unittest.TestCase):
    def setUp(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs two processors, as scripts/compare does")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vela-compare-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.log = self.directory / "log"
        self.log.touch()
        self.cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2]]

    def start(self, *arguments, **environment):
        command = [sys.executable, COMPARE, "iot", "--vela", HERE / "fakes" / "vela", "--vela-bench", HERE / "fakes" / "vela-bench", "--broker-cpu", self.cpus[0],
                   "--load-cpu", self.cpus[1], "-o", self.directory / "out", "--warmup", "1", "--duration", "2", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "FAKE_LOG": str(self.log), **environment})

    def finish(self, process):
        self.addCleanup(process.kill)
        out, err = process.communicate(timeout=DEADLINE)
        self.words = err
        return process.returncode, out

    def results(self):
        return json.loads((self.directory / "out" / "results.json").read_text())

    def started(self):
        return [line for line in self.log.read_text().splitlines() if line.startswith("start ")]

    def assert_gone(self):
        for line in self.log.read_text().splitlines():
            if line.startswith(("start ", "hang ")):
                self.assertFalse(pathlib.Path("/proc", line.split()[1]).exists(), line)

    def test_four_modes_of_the_limiter_in_rotated_order(self):
        code, out = self.finish(self.start("--runs", "2"))
        self.assertEqual(code, 0, self.words)
        modes = [line.rpartition("enabled ")[2] for line in self.started()]
        self.assertEqual(modes, ["disabled", "tracking", "auto", "enabled", "tracking", "auto", "enabled", "disabled"])
        self.assertTrue(all(f"[{self.cpus[0]}]" in line and "--cores 1 " in line for line in self.started()))
        results = self.results()
        self.assertTrue(results["complete"] and results["valid"])
        self.assertEqual([cell["valid"] for cell in results["cells"]], [2, 2, 2, 2])
        self.assertIn("not observed", out)
        for name in ("commit", "host", "binaries", "command", "load_average_before"):
            self.assertIn(name, results["manifest"])
        self.assertIn("| disabled |", (self.directory / "out" / "table.md").read_text())
        self.assert_gone()

    def test_an_invalid_run_is_listed_and_not_counted(self):
        code, out = self.finish(self.start("--runs", "2", "--variants", "auto", FAKE_INVALID="2"))
        self.assertEqual(code, 3, self.words)
        results = self.results()
        self.assertFalse(results["valid"])
        self.assertEqual((results["cells"][0]["valid"], results["cells"][0]["excluded"]), (1, 1))
        self.assertIn("auto, repetition 2: invalid: 1 message lost", out)

    def test_rates_share_a_start_and_a_running_peer_is_left_alone(self):
        code, _ = self.finish(self.start("--runs", "2", "--peer", "pulsar://127.0.0.1:9", "--rates", "2000,1000"))
        self.assertEqual(code, 0, self.words)
        self.assertEqual(len(self.started()), 2)
        runs = [line for line in self.log.read_text().splitlines() if line.startswith("run ")]
        self.assertEqual([line.split()[1][-1] + "@" + line.split()[2] for line in runs], ["1@1000", "1@2000", "9@1000", "9@2000"] + ["9@1000", "9@2000", "1@1000", "1@2000"])

    def test_interrupted_it_stops_everything_and_keeps_what_was_done(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                shutil.rmtree(self.directory / "out", ignore_errors=True)
                self.log.write_text("")
                process = self.start("--runs", "3", "--variants", "auto", FAKE_HANG="2")
                end = time.monotonic() + DEADLINE
                while "hang " not in self.log.read_text():
                    self.assertLess(time.monotonic(), end, "the second run did not begin")
                    time.sleep(0.02)
                process.send_signal(number)
                code, _ = self.finish(process)
                self.assertEqual(code, 130, self.words)
                results = self.results()
                self.assertEqual([run["state"] for run in results["runs"]], ["valid", "interrupted"])
                self.assertEqual((results["complete"], results["valid"], results["cells"][0]["valid"]), (False, False, 1))
                self.assert_gone()

    def test_a_broker_that_does_not_start_fails_its_turn_and_not_the_others(self):
        broken = self.directory / "vela"
        broken.write_text("#!/bin/sh\necho 'the disk is full' >&2\nexit 1\n")
        broken.chmod(0o755)
        code, out = self.finish(self.start("--runs", "1", "--variants", "auto,enabled", "--vela", str(broken)))
        self.assertEqual(code, 3, self.words)
        self.assertEqual([run["state"] for run in self.results()["runs"]], ["failed", "failed"])
        self.assertIn("the disk is full", out)

    def test_results_do_not_mix(self):
        (self.directory / "out").mkdir()
        (self.directory / "out" / "old").touch()
        code, _ = self.finish(self.start())
        self.assertEqual(code, 1)
        self.assertIn("not empty", self.words)


if __name__ == "__main__":
    unittest.main()
