//! The addresses that answers tell clients.

use super::Shared;
use crate::engine::message::CoreId;
use axum::http::{HeaderMap, header};

/// Where the broker can be reached, for one client.
#[derive(Debug, Clone)]
pub(super) struct Urls {
    /// Host and HTTP port: how Pulsar names a broker.
    pub(super) broker_id: String,
    pub(super) http: String,
    pub(super) broker: String,
    host: String,
    core_ports: Vec<u16>,
}

impl Urls {
    /// The address of the binary protocol that leads straight to a core.
    pub(super) fn broker_of(&self, core: CoreId) -> String {
        match self.core_ports.get(usize::from(core)) {
            Some(port) => format!("pulsar://{}:{port}", self.host),
            None => self.broker.clone(),
        }
    }
}

impl Shared {
    /// The advertised address, or the one that the client already uses.
    pub(super) fn urls(&self, headers: &HeaderMap) -> Urls {
        let place = self.broker.place();
        let host = match &place.advertised {
            Some(host) => host.clone(),
            None => {
                let host = headers
                    .get(header::HOST)
                    .and_then(|host| host.to_str().ok());
                without_port(host.unwrap_or("localhost")).to_owned()
            }
        };
        let host = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host,
        };
        Urls {
            broker_id: format!("{host}:{}", place.web_port),
            http: format!("http://{host}:{}", place.web_port),
            broker: format!("pulsar://{host}:{}", place.port),
            core_ports: place.core_ports,
            host,
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::without_port;

    #[test]
    fn a_host_is_what_stands_before_the_port() {
        assert_eq!(without_port("a.b:80"), "a.b");
        assert_eq!(without_port("[::1]:8080"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("localhost"), "localhost");
    }
}
