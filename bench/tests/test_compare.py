"""Tests of the pure parts of scripts/compare: order, medians, exclusion, saturation. No broker is needed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from compare import figures, plan, table  # noqa: E402
from compare.figures import FAILED, INTERRUPTED, INVALID, VALID, Run  # noqa: E402

LIMITER = ["disabled", "tracking", "auto", "enabled"]


def run(variant="a", rate=1000, state=VALID, repetition=1, reason="", **numbers):
    return Run(variant, rate, repetition, state, reason, figures=numbers)


class Order(unittest.TestCase):
    def test_each_variant_runs_once_per_repetition(self):
        order = plan.turns(LIMITER, 3, [])
        self.assertEqual(len(order), 12)
        for repetition in (1, 2, 3):
            self.assertEqual(sorted(turn.variant for turn in order if turn.repetition == repetition), sorted(LIMITER))

    def test_each_repetition_begins_with_another_variant(self):
        order = plan.turns(LIMITER, 5, [])
        self.assertEqual([order[i * 4].variant for i in range(5)], [*LIMITER, "disabled"])
        self.assertEqual([turn.variant for turn in order[4:8]], ["tracking", "auto", "enabled", "disabled"])

    def test_rates_ascend_within_a_turn(self):
        (turn,) = plan.turns(["a"], 1, [20_000, 10_000])
        self.assertEqual(turn.rates, (10_000, 20_000))
        self.assertEqual(turn.name(10_000), "1-a-10000")
        self.assertEqual(plan.turns(["a"], 1, [])[0].rates, (None,))


class WarmUp(unittest.TestCase):
    def test_needs_three_windows_that_agree(self):
        self.assertFalse(plan.settled([], 0.05))
        self.assertFalse(plan.settled([100.0, 100.0], 0.05))
        self.assertFalse(plan.settled([100.0, 100.0, 94.9], 0.05))
        self.assertFalse(plan.settled([100.0, 94.9, 94.9], 0.05))
        self.assertTrue(plan.settled([100.0, 95.1, 95.1], 0.05))
        self.assertTrue(plan.settled([300.0, 100.0, 104.9, 101.0], 0.05))
        self.assertFalse(plan.settled([100.0, 100.0, 100.0, 50.0], 0.05), "an earlier agreement does not count")
        self.assertFalse(plan.settled([0.0, 0.0, 0.0], 0.05))


class Medians(unittest.TestCase):
    def test_middle_least_and_most(self):
        self.assertEqual(figures.spread([3, 1, 2]), figures.Spread(2, 1, 3))
        self.assertEqual(figures.spread([4, 1, None, 2, 3]), figures.Spread(2.5, 1, 4))
        self.assertIsNone(figures.spread([None]))
        self.assertIsNone(figures.spread([]))

    def test_text_shows_the_spread_where_there_is_one(self):
        self.assertEqual(figures.Spread(1234.5, 1000, 2000).text(1), "1,234.5 [1,000.0 - 2,000.0]")
        self.assertEqual(figures.Spread(5, 5, 5).text(0), "5")


class Exclusion(unittest.TestCase):
    def test_only_valid_runs_enter_the_figures(self):
        runs = [run(achieved=10), run(achieved=30), run(state=INVALID, achieved=1_000_000), run(state=INTERRUPTED), run(state=FAILED, achieved=0)]
        cell = figures.summary(runs, 250)
        self.assertEqual((cell["valid"], cell["excluded"]), (2, 3))
        self.assertEqual(cell["figures"]["achieved"], figures.Spread(20, 10, 30))

    def test_a_cell_without_valid_runs_has_no_figures(self):
        cell = figures.summary([run(state=INVALID, achieved=5)], 250)
        self.assertEqual((cell["valid"], cell["figures"], cell["throttled"]), (0, {}, None))

    def test_excluded_runs_are_listed_with_their_reason(self):
        text = table.exclusions([run(), run(variant="b", state=INVALID, repetition=2, reason="3 messages lost")])
        self.assertEqual(text, "- b at 1,000/s, repetition 2: invalid: 3 messages lost\n")

    def test_the_whole_counts_only_if_everything_ran_and_is_valid(self):
        self.assertTrue(figures.all_valid([run(), run()], 2))
        self.assertFalse(figures.all_valid([run()], 2))
        self.assertFalse(figures.all_valid([run(), run(state=INVALID)], 2))


class Throttling(unittest.TestCase):
    def test_zero_samples_are_not_observed(self):
        self.assertEqual(figures.throttled([0, 0]), "not observed")
        self.assertEqual(figures.throttled([0, 2]), "2 samples")
        self.assertIsNone(figures.throttled([None, None]), "not measured is something else")


class Saturation(unittest.TestCase):
    def of(self, **numbers):
        return figures.saturation({"offered": 10_000, "achieved": 10_000, "publish_p99": 20, "broker_share": 0.5, "load_share": 0.2, **numbers}, 250)

    def test_carried_load_is_not(self):
        self.assertEqual(self.of(), [])
        self.assertEqual(self.of(achieved=9_901), [])
        self.assertEqual(self.of(broker_share=1.0), [], "a busy core that carries the load is not saturated")

    def test_less_than_offered_is(self):
        self.assertEqual(self.of(achieved=9_000, broker_share=0.99), ["broker"])
        self.assertEqual(self.of(achieved=9_000, load_share=0.95), ["load"])
        self.assertEqual(self.of(achieved=9_000, broker_share=0.95, load_share=0.95), ["broker", "load"])
        self.assertEqual(self.of(achieved=9_000), ["unknown"])

    def test_queueing_is(self):
        self.assertEqual(self.of(publish_p99=1_800, broker_share=0.99), ["broker"])

    def test_as_fast_as_possible_has_nothing_to_fall_behind(self):
        self.assertEqual(self.of(offered=None, publish_p99=9_999), [])


class Tables(unittest.TestCase):
    def test_one_row_per_variant_and_rate(self):
        runs = [run(variant, rate, achieved=rate, offered=rate, throttled_samples=0) for variant in ("a", "b") for rate in (20_000, 10_000)]
        header, *rows = table.rows(runs, 250)
        self.assertEqual([row[:3] for row in rows], [["a", "10,000", "1 of 1"], ["b", "10,000", "1 of 1"], ["a", "20,000", "1 of 1"], ["b", "20,000", "1 of 1"]])
        self.assertTrue(all(len(row) == len(header) for row in rows))
        self.assertEqual(rows[0][-1], "not observed")

    def test_markdown_has_a_line_under_its_header(self):
        text = table.markdown([["x", "y"], ["1", "2"]])
        self.assertEqual(text, "| x | y |\n|---|---|\n| 1 | 2 |\n")

    def test_plain_is_turned_over(self):
        self.assertEqual(table.plain([["name", "n"], ["a", "10"], ["bb", "2"]]), "name   a  bb\nn     10   2\n")


if __name__ == "__main__":
    unittest.main()
