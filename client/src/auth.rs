//! Who the client says it is: asked for with every connection, and again when the broker challenges (PIP-30).

use crate::{Error, Result};
use bytes::Bytes;
use std::fmt;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::pin::Pin;

/// The answer of an [`AuthProvider`].
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Result<Bytes>> + Send + 'a>>;

/// A method of authentication.
pub trait AuthProvider: Send + Sync {
    /// Its name, as brokers know it: `token`, `tls`, `basic`, …
    fn method(&self) -> &str;

    /// The data of a CONNECT. Asked for anew with every connection.
    fn data(&self) -> AuthFuture<'_>;

    /// The answer to an AUTH_CHALLENGE with this data. By default the data of a CONNECT: right for every method whose challenge
    /// only says that the credentials expire.
    fn challenge(&self, _data: Bytes) -> AuthFuture<'_> {
        self.data()
    }
}

/// Where a token comes from.
enum Source {
    Text(String),
    Env(String),
    File(PathBuf),
    Call(Box<dyn Fn() -> Result<String> + Send + Sync>),
}

/// `token`: a JSON Web Token, or whatever the broker takes for one.
pub struct Token(Source);

impl Token {
    /// This token.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(Source::Text(token.into()))
    }

    /// What this environment variable holds.
    #[must_use]
    pub fn from_env(name: impl Into<String>) -> Self {
        Self(Source::Env(name.into()))
    }

    /// What this file holds, read anew each time, so that it can be renewed.
    #[must_use]
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// What this returns. It is called with every connection and may not block for long.
    #[must_use]
    pub fn from_fn(call: impl Fn() -> Result<String> + Send + Sync + 'static) -> Self {
        Self(Source::Call(Box::new(call)))
    }

    /// As Pulsar's tools write it: `token:TEXT`, `file:///PATH`, `env:NAME`, or the token itself.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some(token) = text.strip_prefix("token:") {
            Self::new(token)
        } else if let Some(path) = text
            .strip_prefix("file://")
            .or_else(|| text.strip_prefix("file:"))
        {
            Self::from_file(path)
        } else if let Some(name) = text.strip_prefix("env:") {
            Self::from_env(name)
        } else {
            Self::new(text)
        }
    }

    fn read(&self) -> Result<String> {
        match &self.0 {
            Source::Text(token) => Ok(token.clone()),
            Source::Env(name) => std::env::var(name).map_err(|error| {
                Error::Authentication(format!("the token's environment variable {name}: {error}"))
            }),
            Source::File(path) => std::fs::read_to_string(path).map_err(|error| {
                Error::Authentication(format!("the token's file {}: {error}", path.display()))
            }),
            Source::Call(call) => call(),
        }
    }
}

impl AuthProvider for Token {
    fn method(&self) -> &str {
        "token"
    }

    fn data(&self) -> AuthFuture<'_> {
        Box::pin(ready(
            self.read()
                .map(|token| Bytes::from(token.trim().to_owned())),
        ))
    }
}

impl fmt::Debug for Token {
    /// Never the token itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(_) => f.write_str("Token(..)"),
            Source::Env(name) => write!(f, "Token(env {name})"),
            Source::File(path) => write!(f, "Token(file {})", path.display()),
            Source::Call(_) => f.write_str("Token(fn)"),
        }
    }
}

/// `basic`: a name and a password.
pub struct Basic(String);

impl Basic {
    /// This name and password.
    #[must_use]
    pub fn new(name: &str, password: &str) -> Self {
        Self(format!("{name}:{password}"))
    }
}

impl AuthProvider for Basic {
    fn method(&self) -> &str {
        "basic"
    }

    fn data(&self) -> AuthFuture<'_> {
        Box::pin(ready(Ok(Bytes::from(self.0.clone()))))
    }
}

impl fmt::Debug for Basic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Basic(..)")
    }
}

/// `tls`: the client's certificate says it all; there is no data.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tls;

impl AuthProvider for Tls {
    fn method(&self) -> &str {
        "tls"
    }

    fn data(&self) -> AuthFuture<'_> {
        Box::pin(ready(Ok(Bytes::new())))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::admission::block_on;

    #[test]
    fn a_file_is_read_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let token = Token::parse(&format!("file://{}", file.path().display()));
        std::fs::write(file.path(), "first\n").unwrap();
        assert_eq!(block_on(token.data()).unwrap(), "first");
        std::fs::write(file.path(), "second").unwrap();
        assert_eq!(block_on(token.challenge(Bytes::new())).unwrap(), "second");
        drop(file);
        let fault = block_on(token.data()).unwrap_err();
        assert!(matches!(fault, Error::Authentication(_)), "{fault}");
    }

    #[test]
    fn forms_are_told_apart_and_secrets_are_not_shown() {
        assert_eq!(block_on(Token::parse("token:abc").data()).unwrap(), "abc");
        assert_eq!(block_on(Token::parse("abc").data()).unwrap(), "abc");
        assert_eq!(
            format!("{:?} {:?}", Token::new("abc"), Basic::new("a", "b")),
            "Token(..) Basic(..)"
        );
        block_on(Token::parse("env:VELA_NO_SUCH_VARIABLE").data()).unwrap_err();
        let calls = Token::from_fn(|| Ok("called".to_owned()));
        assert_eq!(
            (calls.method(), block_on(calls.data()).unwrap()),
            ("token", Bytes::from("called"))
        );
        assert_eq!(block_on(Basic::new("a", "b").data()).unwrap(), "a:b");
        assert_eq!(block_on(Tls.data()).unwrap(), "");
    }
}
