//! The query of a request.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::collections::HashMap;
use std::convert::Infallible;

/// Query parameters by name; of several with one name the first counts.
#[derive(Debug, Default)]
pub(super) struct Params(HashMap<String, String>);

impl Params {
    fn parse(query: &str) -> Self {
        let mut params = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            params.entry(decode(name)).or_insert_with(|| decode(value));
        }
        Self(params)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A boolean; whatever is not `true` is false, as in Pulsar.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.flag_or(name, false)
    }

    pub(super) fn flag_or(&self, name: &str, default: bool) -> bool {
        self.get(name)
            .map_or(default, |value| value.eq_ignore_ascii_case("true"))
    }
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

/// Undoes the encoding of a form: `+` is a space, `%XX` a byte.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let encoded = behind
            .get(..2)
            .and_then(|two| std::str::from_utf8(two).ok());
        match (
            first,
            encoded.and_then(|two| u8::from_str_radix(two, 16).ok()),
        ) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Encodes a text as forms have it.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => encoded.push('+'),
            b'-' | b'_' | b'.' | b'*' => encoded.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(encode("a/b c.é"), "a%2Fb+c.%C3%A9");
        assert_eq!(decode(&encode("a/b c.é+%")), "a/b c.é+%");
    }

    #[test]
    fn forms_are_decoded() {
        let params = Params::parse("a=1%2F2+3&b&c=%zz&a=9&force=TRUE");
        assert_eq!(params.get("a"), Some("1/2 3"));
        assert_eq!(params.get("b"), Some(""));
        assert_eq!(params.get("c"), Some("%zz"));
        assert!(params.flag("force") && !params.flag("b") && params.flag_or("x", true));
    }
}
