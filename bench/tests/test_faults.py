"""Faults between load and broker, each of which `vela-bench run` has to notice. Without these a valid run would prove nothing.

Needs the broker and the load generator: VELA_BIN and VELA_BENCH_BIN, else target/x86_64-unknown-linux-gnu/ci/{vela,vela-bench}.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from compare.processes import Server  # noqa: E402

BINARIES = HERE.parents[1] / "target" / "x86_64-unknown-linux-gnu" / "ci"
VELA = os.environ.get("VELA_BIN", str(BINARIES / "vela"))
BENCH = os.environ.get("VELA_BENCH_BIN", str(BINARIES / "vela-bench"))
VALID, INVALID = 0, 3
SIZE = 100
# The fault strikes in the middle of some 3,000 messages.
NTH = "1000"


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="vela-faults-")
        cls.directory = pathlib.Path(cls.temporary.name)
        command = [VELA, "broker", "--bind", "127.0.0.1", "--port", "0", "--web-port", "0", "--cores", "1", "--data-dir", cls.directory / "data"]
        cls.broker = Server(command, cls.directory / "broker")

    @classmethod
    def tearDownClass(cls):
        cls.broker.stop()
        cls.temporary.cleanup()

    def run_through(self, *faults, patience=30, arguments=()):
        """Runs load through a proxy with these faults. Answers the exit code, the result and what the proxy did."""
        proxy = Server([BENCH, "proxy", "--to", self.broker.url, *faults], self.directory / "proxy")
        try:
            out = self.directory / "result.json"
            out.unlink(missing_ok=True)
            command = [BENCH, "run", "iot", "--url", proxy.url, "--rate", "1500", "--warmup", "0.5", "--duration", "1.5", "--devices", "60", "--topics", "3", "--clients", "3",
                       "--size", SIZE, "--patience", patience, "--out", out, *arguments]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
            self.assertTrue(out.exists(), done.stderr)
            did = [line.removeprefix("proxy: ") for line in proxy.said().splitlines()[1:]]
            return done.returncode, json.loads(out.read_text()), did
        finally:
            proxy.stop()

    def assert_caught(self, code, result, did, done, **least):
        self.assertTrue(did and did[0].startswith(done), did)
        self.assertEqual((code, result["valid"], result["interrupted"]), (INVALID, False, False), result["faults"])
        self.assertTrue(result["faults"])
        counts = result["verification"]
        for name, count in least.items():
            self.assertGreaterEqual(counts[name], count, (name, result["faults"]))
        for name in {"duplicates", "lost", "out_of_order", "corrupt", "unanswered", "wrong_receipts"} - set(least):
            self.assertEqual(counts[name], 0, (name, result["faults"]))

    def details(self, result, kind):
        return [offence["detail"] for offence in result["verification"]["offences"] if offence["kind"] == kind]

    def test_without_faults_the_run_is_valid(self):
        code, result, did = self.run_through()
        self.assertEqual((code, result["valid"], result["faults"], did), (VALID, True, [], []))
        self.assertGreater(result["verification"]["checked"], int(NTH))

    def test_a_message_that_is_not_delivered(self):
        self.assert_caught(*self.run_through("--drop", NTH, patience=10), "dropped MESSAGE", lost=1)

    def test_a_receipt_for_a_message_that_was_never_stored(self):
        self.assert_caught(*self.run_through("--drop-send", NTH, patience=10), "dropped SEND", lost=1)

    def test_a_message_that_is_delivered_twice(self):
        self.assert_caught(*self.run_through("--duplicate", NTH), "repeated MESSAGE", duplicates=1)

    def test_messages_of_one_device_that_change_places(self):
        self.assert_caught(*self.run_through("--reorder", NTH), "held MESSAGE", out_of_order=1)

    def test_an_altered_byte_that_the_checksum_of_the_frame_shows(self):
        code, result, did = self.run_through("--flip", NTH)
        self.assert_caught(code, result, did, "altered MESSAGE", corrupt=1)
        self.assertTrue(any("checksum" in detail for detail in self.details(result, "corrupt")), result["verification"]["offences"])

    def test_an_altered_byte_behind_a_right_checksum(self):
        # The last byte of the pattern, one of the payload's own checksum, and the first one of the time.
        for byte in (0, SIZE - 40, SIZE - 1):
            with self.subTest(byte):
                code, result, did = self.run_through("--flip", NTH, "--flip-byte", byte, "--recompute-checksum")
                self.assert_caught(code, result, did, "altered MESSAGE", corrupt=1)


if __name__ == "__main__":
    unittest.main()
