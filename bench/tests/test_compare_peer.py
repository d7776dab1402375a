"""Tests of the peer's start script that need neither Java nor Maven."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

START = pathlib.Path(__file__).resolve().parents[1] / "peers" / "apache-pulsar" / "start"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("pulsar_start", str(START))
start = importlib.util.module_from_spec(importlib.util.spec_from_loader("pulsar_start", loader))
loader.exec_module(start)


def options(*words):
    with mock.patch.object(sys, "argv", ["start", "--dir", "x", *words]):
        return start.arguments()


class Settings(unittest.TestCase):
    def test_options_become_settings(self):
        conf = start.settings(options("--journal-sync", "off", "--cpus", "0"), 7001, 7002)
        for name, value in (("brokerServicePort", "7001"), ("webServicePort", "7002"), ("journalSyncData", "false"), ("numIOThreads", "2"),
                            ("managedLedgerDefaultAckQuorum", "1")):
            self.assertEqual(conf[name], value, name)

    def test_synced_unless_said_otherwise_and_set_wins(self):
        self.assertEqual(start.settings(options(), 1, 2)["journalSyncData"], "true")
        self.assertEqual(start.settings(options("--set", "a=b=c", "--set", "numIOThreads=9"), 1, 2)["a"], "b=c")
        self.assertEqual(start.settings(options("--set", "numIOThreads=9"), 1, 2)["numIOThreads"], "9")

    def test_memory_is_that_of_pulsars_own_script(self):
        self.assertEqual((options().heap, options().direct), ("2g", "4g"))

    def test_processors(self):
        self.assertEqual(start.cpu_list("0,2-3"), {0, 2, 3})


class Jars(unittest.TestCase):
    def test_the_digest_is_of_names_and_contents(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "a.jar").write_bytes(b"1")
            (folder / "b.jar").write_bytes(b"2")
            count, first = start.digest(folder)
            self.assertEqual((count, first), (2, start.digest(folder)[1]))
            (folder / "b.jar").write_bytes(b"3")
            self.assertNotEqual(start.digest(folder)[1], first)

    def test_versions_are_pinned_to_one(self):
        pom = (START.parent / "pom.xml").read_text()
        self.assertIn(f"<pulsar.version>{start.PULSAR}</pulsar.version>", pom)
        self.assertIn(f"<version>{start.COPY.split(':')[2]}</version>", pom)


if __name__ == "__main__":
    unittest.main()
