//! The page: one HTML file without anything from outside.

use super::html::{escape, grouped, table};
use super::model::{FIGURES, Report, Run, Sample, Spread, latency_at};
use super::svg::{Band, Line, Plot, Scale, number};

/// Colours and dashes of the style sheet; further variants begin again.
const STYLES: usize = 6;
/// Percentiles that carry marks and stand in the tables.
const MARKED: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// A measure over time: title, what a value is divided by, and where it stands in a sample.
type Measure = (&'static str, &'static str, f64, fn(&Sample) -> Option<f64>);
const MEASURES: [Measure; 5] = [
    ("Throughput", "msg/s", 1.0, |sample| {
        sample.delivered.or(sample.published)
    }),
    ("Broker CPU", "cores", 1.0, |sample| sample.broker_cpu),
    ("Broker memory (RSS)", "MiB", 1_048_576.0, |sample| {
        sample.rss
    }),
    ("Retained inbound memory", "MiB", 1_048_576.0, |sample| {
        sample.retained
    }),
    (
        "Throttled by the memory limiter",
        "1 = yes",
        1.0,
        |sample| sample.throttled,
    ),
];

/// Percentiles and latencies of one side of a run.
type Curve = fn(&Run) -> &[(f64, f64)];

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let title = escape(&report.title);
    let mut body = format!(
        "<header><h1>{title}</h1><p class=\"lead\">{}</p></header><main>",
        escape(&lead(report))
    );
    body += &excluded(report);
    if report.runs.is_empty() {
        body += "<p>There is no valid run to show.</p>";
    } else {
        body += "<section><h2>Figures</h2><p class=\"soft\">Median of the valid runs; below it the least and the most.</p>";
        body += "<div class=\"tables\">";
        for rate in report.rates() {
            body += &figures(report, rate);
        }
        body += "</div></section>";
        for (i, rate) in report.rates().into_iter().enumerate() {
            body += &latencies(report, rate, i);
        }
        for (i, rate) in report.rates().into_iter().enumerate() {
            body += &over_time(report, rate, i);
        }
    }
    body += &manifest(report);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"generator\" content=\"vela-bench {}\"><title>{title}</title><style>{}</style></head><body>{body}</main></body></html>\n",
        env!("CARGO_PKG_VERSION"),
        include_str!("style.css")
    )
}

fn lead(report: &Report) -> String {
    let runs = match report.runs.len() {
        1 => "one valid run".to_owned(),
        count => format!("{count} valid runs"),
    };
    let left_out = match report.excluded.len() {
        0 => String::new(),
        count => format!(", {count} not counted"),
    };
    let began = report
        .facts
        .first()
        .map(|(_, when)| format!(" · {when}"))
        .unwrap_or_default();
    format!("{} · {runs}{left_out}{began}", report.variants().join(", "))
}

fn excluded(report: &Report) -> String {
    if report.excluded.is_empty() {
        return String::new();
    }
    let items: String = report
        .excluded
        .iter()
        .map(|(name, reason)| {
            format!(
                "<li><strong>{}</strong>: {}</li>",
                escape(name),
                escape(reason)
            )
        })
        .collect();
    format!(
        "<section class=\"bad\" aria-label=\"Runs that do not count\"><strong>Not counted</strong><ul>{items}</ul></section>"
    )
}

/// "at 20 000 msg/s", or what stands for no rate.
fn at(rate: Option<f64>) -> String {
    rate.map_or("as fast as the window allows".into(), |rate| {
        format!("{} msg/s offered", grouped(rate, 0))
    })
}

/// A table of one rate: a row for each figure, a column for each variant.
fn figures(report: &Report, rate: Option<f64>) -> String {
    let variants: Vec<_> = report
        .variants()
        .into_iter()
        .filter(|variant| report.of(variant, rate).next().is_some())
        .collect();
    let mut rows = vec![vec![String::new()]];
    if let Some(header) = rows.first_mut() {
        header.extend(variants.iter().map(|variant| escape(variant)));
    }
    for (name, title, unit, divisor, digits) in FIGURES {
        let cells: Vec<_> = variants
            .iter()
            .map(|variant| Spread::of(report.of(variant, rate).filter_map(|run| run.figure(name))))
            .collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(", {unit}")
        };
        let mut row = vec![format!("{title}{unit}")];
        row.extend(cells.into_iter().map(|cell| match cell {
            // Zero samples are no proof that it never throttled.
            Some(spread) if name == "throttled_samples" && spread.high == 0.0 => {
                "not observed".into()
            }
            Some(spread) => value(spread, divisor, digits),
            None => "<span title=\"not measured\">\u{2013}</span>".into(),
        }));
        rows.push(row);
    }
    let mut counts = vec!["Valid runs".to_owned()];
    counts.extend(
        variants
            .iter()
            .map(|variant| report.of(variant, rate).count().to_string()),
    );
    rows.push(counts);
    if report.runs.iter().any(|run| !run.saturated.is_empty()) {
        let mut row = vec!["Saturated".to_owned()];
        row.extend(variants.iter().map(|variant| {
            let sides = report
                .of(variant, rate)
                .next()
                .map(|run| run.saturated.as_str())
                .unwrap_or_default();
            if sides.is_empty() {
                "no".into()
            } else {
                escape(sides)
            }
        }));
        rows.push(row);
    }
    table(&at(rate), &rows)
}

fn value(spread: Spread, divisor: f64, digits: usize) -> String {
    let [median, low, high] =
        [spread.median, spread.low, spread.high].map(|value| grouped(value / divisor, digits));
    if low == high {
        median
    } else {
        format!("{median}<small>{low} to {high}</small>")
    }
}

fn legend(report: &Report) -> String {
    let variants = report.variants();
    if variants.len() < 2 {
        return String::new();
    }
    let items: String = variants
        .iter()
        .enumerate()
        .map(|(i, variant)| {
            format!(
                "<li><svg viewBox=\"0 0 36 12\" aria-hidden=\"true\"><path class=\"line s{}\" d=\"M1 6H35\"/></svg>{}</li>",
                i % STYLES,
                escape(variant)
            )
        })
        .collect();
    format!("<ul class=\"legend\" aria-label=\"Lines\">{items}</ul>")
}

fn latencies(report: &Report, rate: Option<f64>, number: usize) -> String {
    let sides: [(&str, &str, Curve); 2] = [
        (
            "publish",
            "Publish: from when a message was due to its receipt",
            |run| &run.publish,
        ),
        (
            "delivery",
            "Delivery: from when a message was due to its arrival",
            |run| &run.delivery,
        ),
    ];
    let all = || {
        report
            .runs
            .iter()
            .filter(move |run| run.rate == rate)
            .flat_map(|run| run.publish.iter().chain(&run.delivery))
    };
    let last = all().map(|(percentile, _)| *percentile).fold(0.0, f64::max);
    if last == 0.0 {
        return String::new();
    }
    // The same scales for both sides, so that they can be compared by eye.
    let x = Scale::Percentile(last.clamp(90.0, 99.9999));
    let y = Scale::log_over(all().map(|(_, ms)| *ms));
    let mut plots = String::new();
    for (name, title, curve) in sides {
        plots += &latency_plot(
            report,
            rate,
            &format!("{name}-{number}"),
            title,
            curve,
            (x, y),
        );
    }
    format!(
        "<section><h2>Latency, {}</h2><p class=\"soft\">Each step to the right is ten times rarer. Lines are medians over the runs; shades reach from the least to the most.</p>{}<div class=\"grid pair\">{plots}</div></section>",
        at(rate),
        legend(report)
    )
}

fn latency_plot(
    report: &Report,
    rate: Option<f64>,
    id: &str,
    title: &str,
    curve: Curve,
    (x, y): (Scale, Scale),
) -> String {
    let (mut lines, mut bands, mut said) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = vec![vec!["Percentile".to_owned()]];
    rows.extend(
        MARKED
            .iter()
            .map(|percentile| vec![format!("{percentile} %")]),
    );
    for (i, variant) in report.variants().into_iter().enumerate() {
        let curves: Vec<_> = report
            .of(variant, rate)
            .map(curve)
            .filter(|points| !points.is_empty())
            .collect();
        let at = |percentile: f64| {
            Spread::of(
                curves
                    .iter()
                    .filter_map(|points| latency_at(points, percentile)),
            )
        };
        // All runs' percentiles, so that each line bends where it was measured.
        let mut percentiles: Vec<f64> = curves
            .iter()
            .flat_map(|points| points.iter().map(|(percentile, _)| *percentile))
            .collect();
        percentiles.sort_by(f64::total_cmp);
        percentiles.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        let spreads: Vec<_> = percentiles
            .into_iter()
            .filter_map(|percentile| Some((percentile, at(percentile)?)))
            .collect();
        if spreads.is_empty() {
            continue;
        }
        let marks = MARKED
            .iter()
            .filter_map(|&percentile| {
                let spread = at(percentile)?;
                Some((
                    percentile,
                    spread.median,
                    format!(
                        "{variant}: {} ms at {percentile} %",
                        grouped(spread.median, 2)
                    ),
                ))
            })
            .collect();
        if let (Some(half), Some(rare)) = (at(50.0), at(99.0)) {
            said.push(format!(
                "{variant}: {} ms at 50 %, {} ms at 99 %",
                grouped(half.median, 2),
                grouped(rare.median, 2)
            ));
        }
        for (row, cell) in
            rows.iter_mut()
                .zip(
                    std::iter::once(escape(variant)).chain(MARKED.iter().map(|&percentile| {
                        at(percentile).map_or("\u{2013}".into(), |spread| value(spread, 1.0, 2))
                    })),
                )
        {
            row.push(cell);
        }
        if curves.len() > 1 {
            let points = spreads
                .iter()
                .map(|(percentile, spread)| (*percentile, spread.low, spread.high))
                .collect();
            bands.push(Band {
                style: i % STYLES,
                points,
            });
        }
        lines.push(Line {
            style: i % STYLES,
            light: false,
            marks,
            points: spreads
                .iter()
                .map(|(percentile, spread)| (*percentile, spread.median))
                .collect(),
        });
    }
    if lines.is_empty() {
        return String::new();
    }
    let (short, long) = title.split_once(": ").unwrap_or((title, ""));
    let plot = Plot {
        id: id.to_owned(),
        title: format!("{short} latency by percentile"),
        description: format!("{}.", said.join("; ")),
        width: 360.0,
        height: 260.0,
        x,
        y,
        x_name: "percentile".into(),
        y_name: "ms".into(),
        bands,
        lines,
        marker: None,
    };
    format!(
        "<figure><figcaption>{short} <small>{long}, ms</small></figcaption>{}<details><summary>As a table</summary>{}</details></figure>",
        plot.svg(),
        table(&format!("{short} latency in milliseconds"), &rows)
    )
}

/// Rows of small plots, one row for each measure and one column for each variant, all of a row with the same scales.
fn over_time(report: &Report, rate: Option<f64>, section: usize) -> String {
    let of_rate = || report.runs.iter().filter(move |run| run.rate == rate);
    let end = of_rate()
        .flat_map(|run| run.samples.iter().map(|sample| sample.time))
        .fold(0.0, f64::max);
    if end == 0.0 {
        return String::new();
    }
    let mut out = format!(
        "<section><h2>Over time, {}</h2><p class=\"soft\">One sample a second; one line for each run. Plots of a row have the same scale.</p>",
        at(rate)
    );
    for (m, (title, unit, divisor, pick)) in MEASURES.into_iter().enumerate() {
        let values = || {
            of_rate()
                .flat_map(|run| run.samples.iter().filter_map(pick))
                .map(|value| value / divisor)
        };
        if values().next().is_none() {
            continue;
        }
        let most = values().fold(0.0, f64::max);
        if title.starts_with("Throttled") && most == 0.0 {
            out += &format!("<h3>{title}</h3><p class=\"soft\">Not observed in any sample.</p>");
            continue;
        }
        let y = Scale::linear_over(values());
        let mut plots = String::new();
        for (i, variant) in report.variants().into_iter().enumerate() {
            plots += &time_plot(
                report,
                rate,
                variant,
                (title, unit, divisor, pick),
                &format!("time-{section}-{m}-{i}"),
                (i % STYLES, end, y),
            );
        }
        out += &format!(
            "<h3>{title} <small class=\"soft\">{unit}</small></h3><div class=\"grid small\">{plots}</div><br>"
        );
    }
    out + "</section>"
}

fn time_plot(
    report: &Report,
    rate: Option<f64>,
    variant: &str,
    (title, unit, divisor, pick): Measure,
    id: &str,
    (style, end, y): (usize, f64, Scale),
) -> String {
    let series: Vec<Vec<(f64, f64)>> = report
        .of(variant, rate)
        .map(|run| {
            run.samples
                .iter()
                .filter_map(|sample| Some((sample.time, pick(sample)? / divisor)))
                .collect()
        })
        .collect();
    let Some(spread) = Spread::of(series.iter().flatten().map(|(_, value)| *value)) else {
        return format!(
            "<figure><figcaption>{}</figcaption><p class=\"soft\">Not measured.</p></figure>",
            escape(variant)
        );
    };
    let several = series.len() > 1;
    let plot = Plot {
        id: id.to_owned(),
        title: format!("{variant}: {title} over time"),
        description: format!(
            "{title} in {unit}: median {}, from {} to {}.",
            number(spread.median),
            number(spread.low),
            number(spread.high)
        ),
        width: 270.0,
        height: 140.0,
        x: Scale::linear_over(std::iter::once(end)),
        y,
        x_name: "seconds".into(),
        y_name: String::new(),
        bands: Vec::new(),
        lines: series
            .into_iter()
            .map(|points| Line {
                style,
                light: several,
                marks: Vec::new(),
                points,
            })
            .collect(),
        marker: report
            .of(variant, rate)
            .find_map(|run| run.warmup)
            .filter(|t| *t > 1.0)
            .map(|t| (t, "measured".into())),
    };
    format!(
        "<figure><figcaption>{} <small>median {}</small></figcaption>{}</figure>",
        escape(variant),
        number(spread.median),
        plot.svg()
    )
}

fn manifest(report: &Report) -> String {
    let facts: String = report
        .facts
        .iter()
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)))
        .collect();
    let notes: String = report
        .notes
        .iter()
        .map(|note| format!("<p class=\"soft\">{}</p>", escape(note)))
        .collect();
    let whole = serde_json::to_string_pretty(&report.manifest).unwrap_or_default();
    format!(
        "<section><h2>How it was measured</h2>{notes}<dl>{facts}</dl><details><summary>The whole manifest</summary><pre tabindex=\"0\">{}</pre></details></section>",
        escape(&whole)
    )
}
