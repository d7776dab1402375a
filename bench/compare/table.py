"""The results as a table: for a terminal, and in Markdown."""

from . import figures

# Title, name of the figure, what to divide by, digits.
COLUMNS = (
    ("msg/s", "achieved", 1, 0),
    ("broker CPU s/M", "broker_cpu", 1, 2),
    ("publish p50 ms", "publish_p50", 1, 2),
    ("publish p99 ms", "publish_p99", 1, 2),
    ("publish p99.9 ms", "publish_p999", 1, 2),
    ("delivery p50 ms", "delivery_p50", 1, 2),
    ("delivery p99 ms", "delivery_p99", 1, 2),
    ("RSS MiB", "rss", 1 << 20, 0),
    ("load CPU s/M", "load_cpu", 1, 2),
)


def rows(runs, p99_limit_ms):
    """Header and one row for each variant and rate."""
    table = [["variant", "offered", "runs", *(title for title, *_ in COLUMNS), "saturated", "throttled"]]
    for (variant, rate), group in figures.cells(runs).items():
        cell = figures.summary(group, p99_limit_ms)
        row = [variant, f"{rate:,}" if rate else offered(cell), f"{cell['valid']} of {len(group)}"]
        for _, name, unit, digits in COLUMNS:
            value = cell["figures"].get(name)
            row.append(figures.Spread(value.median / unit, value.low / unit, value.high / unit).text(digits) if value else "-")
        table.append([*row, saturated(cell), cell["throttled"] or "-"])
    return table


def offered(cell):
    value = cell["figures"].get("offered")
    return value.text(0) if value else "all it takes"


def saturated(cell):
    if not cell["valid"]:
        return "-"
    count, sides = cell["saturated"]["runs"], cell["saturated"]["sides"]
    if not count:
        return "no"
    return " and ".join(sides) + ("" if count == cell["valid"] else f" ({count} of {cell['valid']})")


def markdown(table):
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines) + "\n"


def plain(table):
    """Turned over, a column for each variant: lines stay short, whatever the number of figures."""
    turned = list(zip(*table))
    widths = [max(len(row[i]) for row in turned) for i in range(len(turned[0]))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
                     for row in turned) + "\n"


def exclusions(runs):
    out = [f"- {run.variant}{f' at {run.rate:,}/s' if run.rate else ''}, repetition {run.repetition}: {run.state}: {run.reason or 'no reason given'}"
           for run in figures.excluded(runs)]
    return "\n".join(out) + "\n" if out else ""
