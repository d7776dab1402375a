//! Plots as inline SVG. Nothing here knows what is plotted.
//!
//! Sizes are CSS pixels; a page shows plots up to half as large again.

use std::fmt::Write as _;

use super::html::escape;

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// How values become places on an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// Evenly from the first value to the second.
    Linear(f64, f64),
    /// By powers of ten, both above 0.
    Log(f64, f64),
    /// Percentiles from 0 to the given one, below 100: each step by a nine takes the same room.
    Percentile(f64),
}

impl Scale {
    /// Linear from 0 to a round number that no value exceeds.
    pub(crate) fn linear_over(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max);
        Self::Linear(0.0, round_up(if most > 0.0 { most } else { 1.0 }))
    }

    /// Logarithmic over all values above 0, from and to 1, 2 or 5 of a decade, one decade at least.
    pub(crate) fn log_over(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, 0.0_f64), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if high == 0.0 {
            return Self::Log(0.1, 10.0);
        }
        let low = Self::steps(low.log10().floor() as i32, 1)
            .rfind(|step| *step <= low * (1.0 + 1e-9))
            .unwrap_or(low);
        let high = Self::steps(high.log10().floor() as i32, 2)
            .find(|step| *step >= high * (1.0 - 1e-9))
            .unwrap_or(high);
        Self::Log(low, high.max(low * 10.0))
    }

    /// 1, 2 and 5 of some decades.
    fn steps(decade: i32, decades: i32) -> impl DoubleEndedIterator<Item = f64> {
        (decade..decade + decades)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)))
    }

    /// 0 at the axis' beginning, 1 at its end; values beyond are put at the end.
    fn place(self, value: f64) -> f64 {
        let part = match self {
            Self::Linear(low, high) => (value - low) / (high - low),
            Self::Log(low, high) => (value.max(low) / low).log10() / (high / low).log10(),
            Self::Percentile(last) => nines(value.min(last)) / nines(last),
        };
        if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(low, high) => (0..=4)
                .map(|step| low + (high - low) * f64::from(step) / 4.0)
                .map(|value| (value, number(value)))
                .collect(),
            Self::Log(low, high) => {
                let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                // Not more labels than there is room for.
                let fine = high / low <= 200.0;
                let every = ((last - first + 5) / 6).max(1);
                (first..=last)
                    .flat_map(|power| [1, 2, 5].map(|step| (power, step)))
                    .filter(|(power, step)| fine || (*step == 1 && (power - first) % every == 0))
                    .map(|(power, step)| f64::from(step) * 10_f64.powi(power))
                    .filter(|value| (low * 0.999..=high * 1.001).contains(value))
                    .map(|value| (value, number(value)))
                    .collect()
            }
            Self::Percentile(last) => [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
                .into_iter()
                .filter(|tick| *tick <= last)
                .map(|tick| (tick, tick.to_string()))
                .collect(),
        }
    }
}

impl Scale {
    /// Values between the ticks that get a faint line: 2, 3, 4 .. of a decade.
    fn minor(self) -> Vec<f64> {
        match self {
            Self::Log(low, high) if high / low < 2e4 => {
                let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                (first..last)
                    .flat_map(|power| (1..10).map(move |step| f64::from(step) * 10_f64.powi(power)))
                    .filter(|value| (low..=high).contains(value))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

/// How many nines a percentile has, as a real number: 0 of 0 %, 1 of 90 %, 2 of 99 %.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).max(1e-9).log10()
}

/// The next number that divides into quarters well.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= value * 0.999_999)
        .unwrap_or(power * 10.0)
}

/// A number as people write it: thousands as k, millions as M, few digits.
pub(crate) fn number(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// A line, with the place of its colour and dashes in the page's palette.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) style: usize,
    /// One of several of its kind: drawn lightly.
    pub(crate) light: bool,
    /// Points carry marks that say their values.
    pub(crate) marks: Vec<(f64, f64, String)>,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What lies between two lines.
#[derive(Debug, Clone)]
pub(crate) struct Band {
    pub(crate) style: usize,
    /// x, least, most.
    pub(crate) points: Vec<(f64, f64, f64)>,
}

/// One plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// Unique in the page, for references within it.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What the plot shows, in words and figures.
    pub(crate) description: String,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    pub(crate) x_name: String,
    pub(crate) y_name: String,
    pub(crate) bands: Vec<Band>,
    pub(crate) lines: Vec<Line>,
    /// A vertical line with a name, such as the beginning of measuring.
    pub(crate) marker: Option<(f64, String)>,
}

impl Plot {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (
            LEFT + self.x.place(x) * (self.width - LEFT - RIGHT),
            self.height - BOTTOM - self.y.place(y) * (self.height - BOTTOM - TOP),
        )
    }

    /// The SVG element.
    pub(crate) fn svg(&self) -> String {
        let mut out = String::new();
        let id = &self.id;
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            self.width,
            self.height,
            escape(&self.title),
            escape(&self.description)
        );
        self.axes(&mut out);
        for band in &self.bands {
            self.band(band, &mut out);
        }
        if let Some((x, name)) = &self.marker {
            let (x, bottom) = self.at(*x, f64::MIN_POSITIVE);
            let _ = write!(
                out,
                "<path class=\"mark\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/><text class=\"hint\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 4.0,
                TOP + 9.0,
                escape(name)
            );
        }
        for line in &self.lines {
            self.line(line, &mut out);
        }
        out.push_str("</svg>");
        out
    }

    fn axes(&self, out: &mut String) {
        let (right, bottom) = (self.width - RIGHT, self.height - BOTTOM);
        for value in self.y.minor() {
            let (_, y) = self.at(0.0, value);
            let _ = write!(
                out,
                "<path class=\"grid minor\" d=\"M{LEFT} {y:.1}H{right}\"/>"
            );
        }
        for (value, name) in self.y.ticks() {
            let (_, y) = self.at(0.0, value);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
                LEFT - 6.0,
                y + 3.5
            );
        }
        let ticks = self.x.ticks();
        for (value, name) in &ticks {
            let (x, _) = self.at(*value, 0.0);
            let anchor = if x > right - 12.0 { " end" } else { "" };
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/><text class=\"x{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{name}</text>",
                bottom + 14.0
            );
        }
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/><text class=\"name\" x=\"{right}\" y=\"{:.1}\">{}</text>",
            self.height - 5.0,
            escape(&self.x_name)
        );
        let _ = write!(
            out,
            "<text class=\"name start\" x=\"0\" y=\"{:.1}\">{}</text>",
            self.height - 5.0,
            escape(&self.y_name)
        );
    }

    fn line(&self, line: &Line, out: &mut String) {
        let Some(path) = self.path(line.points.iter().copied()) else {
            return;
        };
        let light = if line.light { " light" } else { "" };
        let _ = write!(
            out,
            "<path class=\"line s{}{light}\" d=\"{path}\"/>",
            line.style
        );
        for (x, y, name) in &line.marks {
            let (x, y) = self.at(*x, *y);
            let _ = write!(
                out,
                "<circle class=\"dot s{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"><title>{}</title></circle>",
                line.style,
                escape(name)
            );
        }
    }

    fn band(&self, band: &Band, out: &mut String) {
        let upper = band.points.iter().map(|&(x, _, high)| (x, high));
        let lower = band.points.iter().rev().map(|&(x, low, _)| (x, low));
        if let Some(path) = self.path(upper.chain(lower)) {
            let _ = write!(out, "<path class=\"band s{}\" d=\"{path}Z\"/>", band.style);
        }
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> Option<String> {
        let mut path = String::new();
        for (x, y) in points {
            let (x, y) = self.at(x, y);
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.1} {y:.1}");
        }
        (!path.is_empty()).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_takes_the_same_room() {
        let scale = Scale::Percentile(99.99);
        for (percentile, place) in [
            (0.0, 0.0),
            (90.0, 0.25),
            (99.0, 0.5),
            (99.9, 0.75),
            (99.99, 1.0),
            (100.0, 1.0),
        ] {
            assert!(
                (scale.place(percentile) - place).abs() < 1e-6,
                "{percentile}"
            );
        }
        let names: Vec<_> = scale.ticks().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["0", "50", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn decades_take_the_same_room_and_nothing_leaves_the_plot() {
        let scale = Scale::log_over([0.3, 40.0].into_iter());
        assert_eq!(scale, Scale::Log(0.2, 50.0));
        assert!((Scale::Log(0.1, 100.0).place(1.0) - 1.0 / 3.0).abs() < 1e-9);
        let names = |scale: Scale| {
            scale
                .ticks()
                .into_iter()
                .map(|(_, name)| name)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names(Scale::Log(0.5, 20.0)), "0.5 1 2 5 10 20");
        assert_eq!(names(Scale::Log(0.2, 5000.0)), "1 10 100 1k");
        for (value, place) in [(0.0, 0.0), (-5.0, 0.0), (1e9, 1.0), (f64::NAN, 0.0)] {
            assert_eq!(scale.place(value), place, "{value}");
        }
        assert_eq!(Scale::log_over([10.0].into_iter()), Scale::Log(10.0, 100.0));
        assert_eq!(Scale::log_over(std::iter::empty()), Scale::Log(0.1, 10.0));
    }

    #[test]
    fn linear_axes_end_at_round_numbers() {
        assert_eq!(
            Scale::linear_over([19_800.0].into_iter()),
            Scale::Linear(0.0, 20_000.0)
        );
        assert_eq!(
            Scale::linear_over([0.97].into_iter()),
            Scale::Linear(0.0, 1.0)
        );
        assert_eq!(
            Scale::linear_over([0.0].into_iter()),
            Scale::Linear(0.0, 1.0)
        );
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (1234.0, "1.23k"),
            (999.0, "999"),
            (20_000.0, "20k"),
            (1.5e6, "1.5M"),
            (0.01, "0.01"),
            (100.0, "100"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn names_cannot_break_the_page() {
        let plot = Plot {
            id: "p".into(),
            title: "<b>&\"".into(),
            description: "a < b".into(),
            width: 360.0,
            height: 200.0,
            x: Scale::Linear(0.0, 1.0),
            y: Scale::Linear(0.0, 1.0),
            x_name: "s".into(),
            y_name: "<script>".into(),
            bands: Vec::new(),
            lines: Vec::new(),
            marker: None,
        };
        let svg = plot.svg();
        assert!(svg.contains("&lt;b&gt;&amp;&quot;") && !svg.contains("<script>"));
    }
}
