//! Patterns of topic names.

use regex::bytes::{Regex, RegexBuilder};

use crate::engine::name::base_of;

/// Sizes of compiled patterns, bytes. One is counted as the smallest that it fits in; beyond the largest it is refused.
const SIZES: [usize; 4] = [16 << 10, 32 << 10, 64 << 10, 256 << 10];

/// A pattern of topic names. It means the whole name, without the domain and without `-partition-N`.
#[derive(Debug, Clone)]
pub struct TopicPattern {
    regex: Regex,
    size: usize,
}

/// Why a text is no pattern that this broker can apply.
#[derive(Debug, Clone, Eq, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// No pattern at all.
    #[error("Invalid topics pattern: {0}")]
    Broken(String),
    /// It looks around or back, which needs unbounded time; the client has to apply it.
    #[error(
        "Invalid topics pattern: look-around and back-references are not applied by this broker; the client can filter the whole list instead"
    )]
    NotApplied,
}

impl TopicPattern {
    /// Compiles a pattern: a regular expression of RE2's kind, with or without `persistent://` in front.
    ///
    /// # Errors
    /// See [`PatternError`]. A pattern that would take more than 256 KiB is broken.
    pub fn parse(text: &str) -> Result<TopicPattern, PatternError> {
        let inner = without_domain(text);
        let build = |unicode| {
            let build = |text: &str, size| {
                RegexBuilder::new(text)
                    .unicode(unicode)
                    .size_limit(size)
                    .dfa_size_limit(size)
                    .nest_limit(50)
                    .build()
            };
            let whole = format!(r"\A(?:{inner})\z");
            let mut last = None;
            for size in SIZES {
                // By itself first: what closes more than it opens is no pattern.
                match build(&inner, size).and_then(|_| build(&whole, size)) {
                    Ok(regex) => return Ok((regex, size)),
                    Err(error @ regex::Error::CompiledTooBig(_)) => last = Some(error),
                    Err(error) => return Err(error),
                }
            }
            Err(last.unwrap_or(regex::Error::CompiledTooBig(0)))
        };
        // Classes like \w mean ASCII, as in RE2 and Java; only what names Unicode classes needs their tables.
        match build(false).or_else(|_| build(true)) {
            Ok((regex, size)) => Ok(TopicPattern { regex, size }),
            Err(_) if looks_around(text) => Err(PatternError::NotApplied),
            Err(error) => {
                // The last line says what is wrong, the others repeat the pattern.
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim();
                Err(PatternError::Broken(reason.to_owned()))
            }
        }
    }

    /// Bytes that it takes, at most: the compiled pattern, and what applying it keeps.
    pub fn bytes(&self) -> usize {
        2 * self.size
    }

    /// What looking at a name costs, in bytes of a name and a pattern of the smallest size: in the worst case each byte meets every state.
    pub fn cost(&self, name: &str) -> usize {
        let [smallest, ..] = SIZES;
        (name.len() + 32) * (self.size / smallest)
    }

    /// Does it mean this topic, by its full name?
    pub fn matches(&self, full: &str) -> bool {
        let name = full.split_once("://").map_or(full, |(_, name)| name);
        self.regex.is_match(base_of(name).as_bytes())
    }
}

/// The pattern without the domain in front of it.
fn without_domain(text: &str) -> String {
    let Some((before, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    for domain in ["non-persistent", "persistent"] {
        if let Some(flags) = before.strip_suffix(domain) {
            return format!("{flags}{rest}");
        }
    }
    // Some expression for the domain: it does not matter which.
    let anchor = if before.starts_with('^') { "^" } else { "" };
    format!("{anchor}{rest}")
}

fn looks_around(text: &str) -> bool {
    let marks = ["(?=", "(?!", "(?<=", "(?<!", "(?>"];
    let back = |text: &str| {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c == '\\' && chars.next().is_some_and(|c| matches!(c, '1'..='9' | 'k')) {
                return true;
            }
        }
        false
    };
    marks.iter().any(|mark| text.contains(mark)) || back(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn matching<'a>(pattern: &str, names: &[&'a str]) -> Vec<&'a str> {
        let pattern = TopicPattern::parse(pattern).unwrap();
        let names = names.iter().copied();
        names.filter(|name| pattern.matches(name)).collect()
    }

    #[test]
    fn a_pattern_means_the_whole_name_without_domain_and_partition() {
        let names = [
            "persistent://t/n/a1",
            "persistent://t/n/a2",
            "persistent://t/n/ba1",
            "persistent://t/n/a-partition-3",
        ];
        let all_of_a = vec![names[0], names[1], names[3]];
        for pattern in [
            "persistent://t/n/a.*",
            "^persistent://t/n/a.*$",
            "non-persistent://t/n/a.*",
            "(persistent|non-persistent)://t/n/a.*",
            "t/n/a.*",
            "(?i)persistent://t/n/A.*",
        ] {
            assert_eq!(matching(pattern, &names), all_of_a, "{pattern}");
        }
        assert_eq!(matching("a.*", &names), [""; 0]);
        assert_eq!(matching("", &names), [""; 0]);
        assert_eq!(matching("persistent://t/n/b|x", &names), [""; 0]);
        assert_eq!(matching(".*a1", &names), [names[0], names[2]]);
        assert_eq!(matching("persistent://t/n/a", &names), [names[3]]);
        assert_eq!(matching("persistent://t/n/a-partition-3", &names), [""; 0]);
        assert_eq!(matching(r"t/n/a\d", &names), [names[0], names[1]]);
        assert_eq!(
            matching(r"t/n/\p{L}+\d", &names),
            [names[0], names[1], names[2]]
        );
    }

    #[test]
    fn what_cannot_be_applied_is_told_from_what_is_broken() {
        for broken in ["a[", "(", "a{2,1}", "*", "(a{999}){999}", "x)(?:y"] {
            let error = TopicPattern::parse(broken).unwrap_err();
            assert!(
                matches!(error, PatternError::Broken(_)),
                "{broken}: {error}"
            );
        }
        for pattern in ["(?!a).*", "t/n/(?=x).*", r"(a)\1", "(?<!x)y", "(?>a)b"] {
            let error = TopicPattern::parse(pattern).unwrap_err();
            assert_eq!(error, PatternError::NotApplied, "{pattern}");
        }
        assert!(TopicPattern::parse(r"t/n/a\\1").is_ok());
    }
}
