//! Text for HTML.

/// Text as it may stand between tags and in attributes with double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// A number with its thousands apart by thin spaces that do not break.
pub(crate) fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (sign, unsigned) = text
        .strip_prefix('-')
        .map_or(("", text.as_str()), |rest| ("\u{2212}", rest));
    let (whole, fraction) = unsigned
        .split_once('.')
        .map_or((unsigned, None), |(whole, fraction)| {
            (whole, Some(fraction))
        });
    let mut out = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// A table with a caption; the first row and the first column are headers.
pub(crate) fn table(caption: &str, rows: &[Vec<String>]) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table><caption>{0}</caption>",
        escape(caption)
    );
    for (i, row) in rows.iter().enumerate() {
        out.push_str(if i == 0 { "<thead><tr>" } else { "<tr>" });
        for (j, cell) in row.iter().enumerate() {
            match (i, j) {
                (0, _) => out.push_str(&format!("<th scope=\"col\">{cell}</th>")),
                (_, 0) => out.push_str(&format!("<th scope=\"row\">{cell}</th>")),
                _ => out.push_str(&format!("<td>{cell}</td>")),
            }
        }
        out.push_str(if i == 0 {
            "</tr></thead><tbody>"
        } else {
            "</tr>"
        });
    }
    out.push_str("</tbody></table></div>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_files_stays_text() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(grouped(1_234_567.891, 1), "1\u{202f}234\u{202f}567.9");
        assert_eq!(grouped(-999.0, 0), "\u{2212}999");
        assert_eq!(grouped(0.5, 2), "0.50");
    }
}
