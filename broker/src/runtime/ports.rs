//! The ports the broker listens on: bound before the log is read, open when all is ready.

use super::error::StartError;
use super::listen::{self, Door};
use crate::config::{CorePorts, Settings};
use socket2::Socket;
use std::net::{IpAddr, SocketAddr};

/// Ports that are bound and not open yet.
pub(super) struct Ports {
    shared: Socket,
    /// Of all cores.
    pub(super) shared_port: u16,
    web: Socket,
    /// Of HTTP.
    pub(super) web_port: u16,
    cores: Vec<Socket>,
    /// One of each core, if they have any.
    pub(super) core_ports: Vec<u16>,
    ip: IpAddr,
}

const SHARED: (&str, &str) = ("brokerServicePort", "--port");
const WEB: (&str, &str) = ("webServicePort", "--web-port");
const CORE: (&str, &str) = ("corePorts", "--core-ports");

impl Ports {
    /// Binds all of them.
    ///
    /// # Errors
    /// [`StartError`] if one is taken or cannot be had.
    pub(super) fn bind(settings: &Settings, ip: IpAddr, cores: u16) -> Result<Self, StartError> {
        let (port, web) = (settings.broker_service_port, settings.web_service_port);
        if port == web && port != 0 {
            return Err(StartError::SamePort { port });
        }
        let (shared, shared_port) = listen::bind(ip, settings.broker_service_port, SHARED)?;
        let (web, web_port) = listen::bind(ip, settings.web_service_port, WEB)?;
        let mut ports = Self {
            shared,
            shared_port,
            web,
            web_port,
            cores: Vec::new(),
            core_ports: Vec::new(),
            ip,
        };
        if let CorePorts::From(first) = settings.core_ports {
            for core in 0..cores {
                let wanted = match first {
                    0 => 0,
                    first => first
                        .checked_add(core)
                        .ok_or(StartError::CorePorts { first, cores })?,
                };
                let (socket, port) = listen::bind(ip, wanted, CORE)?;
                ports.cores.push(socket);
                ports.core_ports.push(port);
            }
        }
        Ok(ports)
    }

    /// Opens the port of HTTP.
    pub(super) fn web(&self) -> Result<std::net::TcpListener, StartError> {
        let socket = self.web.try_clone().map_err(|cause| StartError::System {
            what: "cannot open the web port",
            cause,
        })?;
        listen::open(socket, self.ip, self.web_port, WEB)
    }

    /// Opens the others.
    pub(super) fn open(self) -> Result<Vec<Door>, StartError> {
        let mut doors = vec![Door {
            listener: listen::open(self.shared, self.ip, self.shared_port, SHARED)?,
            core: None,
        }];
        for ((core, socket), port) in (0..).zip(self.cores).zip(self.core_ports) {
            doors.push(Door {
                listener: listen::open(socket, self.ip, port, CORE)?,
                core: Some(core),
            });
        }
        Ok(doors)
    }

    /// What a client is told: the URLs of both ports.
    pub(super) fn addresses(&self, settings: &Settings) -> String {
        let host = match &settings.advertised_address {
            Some(host) => host.clone(),
            None if self.ip.is_unspecified() => "localhost".to_owned(),
            None => self.ip.to_string(),
        };
        let at = |port| match host.parse::<IpAddr>() {
            // With the brackets that an IPv6 address has in a URL.
            Ok(ip) => SocketAddr::new(ip, port).to_string(),
            Err(_) => format!("{host}:{port}"),
        };
        format!(
            "pulsar://{} http://{}",
            at(self.shared_port),
            at(self.web_port)
        )
    }
}
