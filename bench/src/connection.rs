//! A connection to the broker: address, handshake, and the requests that set up a run, which wait for their answer.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use bytes::BytesMut;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;
use vela_proto::command_lookup_topic_response::LookupType;
use vela_proto::command_subscribe::{InitialPosition, SubType};
use vela_proto::{
    BaseCommand, CommandConnect, CommandLookupTopic, CommandProducer, CommandSubscribe,
};

use crate::error::{Context as _, Failure, Result, fail};
use crate::wire::Input;

/// The version of the protocol spoken.
const PROTOCOL_VERSION: i32 = 21;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects followed by a lookup.
const MAX_REDIRECTS: usize = 20;

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    /// `host:port` of the broker behind the proxy, if the lookup said to go through it.
    pub(crate) behind_proxy: Option<String>,
}

impl Address {
    /// Resolves a URL such as `pulsar://localhost:6650`.
    pub(crate) fn resolve(url: &str) -> Result<Self> {
        let Some(host) = host_of(url) else {
            return fail(format!(
                "'{url}' is not a URL of the form pulsar://HOST:PORT (TLS is not supported)"
            ));
        };
        let socket = host
            .to_socket_addrs()
            .context(|| format!("cannot resolve the address of {url}"))?
            .next()
            .ok_or_else(|| Failure(format!("the host of {url} has no address")))?;
        Ok(Self {
            socket,
            behind_proxy: None,
        })
    }
}

/// `host:port` of a URL such as `pulsar://localhost:6650`.
pub(crate) fn host_of(url: &str) -> Option<&str> {
    let host = url.strip_prefix("pulsar://")?.trim_end_matches('/');
    let (name, port) = host.rsplit_once(':')?;
    (!name.is_empty() && port.parse::<u16>().is_ok()).then_some(host)
}

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) input: Input,
    next_request: u64,
}

impl Connection {
    /// Connects without a handshake. Input is read `input` bytes at a time.
    pub(crate) fn dial(address: &Address, input: usize) -> Result<Self> {
        let stream = TcpStream::connect(address.socket)
            .context(|| format!("cannot connect to {}", address.socket))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(REQUEST_TIMEOUT)))
            .context(|| format!("cannot set up the socket to {}", address.socket))?;
        Ok(Self {
            stream,
            input: Input::new(input),
            next_request: 1,
        })
    }

    /// Connects and shakes hands.
    pub(crate) fn open(address: &Address, input: usize) -> Result<Self> {
        let mut connection = Self::dial(address, input)?;
        connection.send(&connect(address.behind_proxy.clone()))?;
        connection.await_connected()?;
        Ok(connection)
    }

    /// Waits for the answer to CONNECT.
    pub(crate) fn await_connected(&mut self) -> Result<()> {
        let answer = self.receive("CONNECT")?;
        match answer.connected {
            Some(_) => Ok(()),
            None => fail(format!("CONNECT was answered with {}", describe(&answer))),
        }
    }

    /// Finds the connection that serves a topic: this one's address, or another.
    pub(crate) fn lookup(&mut self, from: &Address, topic: &str) -> Result<Address> {
        let mut from = from.clone();
        let mut other: Option<Self> = None;
        let mut authoritative = false;
        for _ in 0..MAX_REDIRECTS {
            let connection = other.as_mut().unwrap_or(self);
            let request_id = connection.request_id();
            connection.send(&BaseCommand {
                r#type: Type::Lookup as i32,
                lookup_topic: Some(CommandLookupTopic {
                    topic: topic.into(),
                    request_id,
                    authoritative: Some(authoritative),
                    ..CommandLookupTopic::default()
                }),
                ..BaseCommand::default()
            })?;
            let answer = connection.receive("LOOKUP")?;
            let Some(found) = answer.lookup_topic_response else {
                return fail(format!(
                    "LOOKUP of {topic} was answered with {}",
                    describe(&answer)
                ));
            };
            let url = found.broker_service_url.clone().unwrap_or_default();
            match found.response() {
                LookupType::Failed => {
                    return fail(format!(
                        "LOOKUP of {topic} failed: {:?}: {}",
                        found.error(),
                        found.message()
                    ));
                }
                LookupType::Connect if found.proxy_through_service_url() => {
                    return Ok(Address {
                        socket: from.socket,
                        behind_proxy: host_of(&url).map(Into::into),
                    });
                }
                LookupType::Connect => return Address::resolve(&url),
                LookupType::Redirect => {
                    authoritative = found.authoritative();
                    from = Address::resolve(&url)?;
                    other = Some(Self::open(&from, 4096)?);
                }
            }
        }
        fail(format!(
            "LOOKUP of {topic} was redirected {MAX_REDIRECTS} times"
        ))
    }

    /// Makes a producer; answers its name.
    pub(crate) fn producer(&mut self, topic: &str, producer_id: u64) -> Result<String> {
        let request_id = self.request_id();
        self.send(&BaseCommand {
            r#type: Type::Producer as i32,
            producer: Some(CommandProducer {
                topic: topic.into(),
                producer_id,
                request_id,
                ..CommandProducer::default()
            }),
            ..BaseCommand::default()
        })?;
        let answer = self.receive("PRODUCER")?;
        match answer.producer_success {
            Some(success) if success.request_id == request_id => Ok(success.producer_name),
            _ => fail(format!(
                "PRODUCER on {topic} was answered with {}",
                describe(&answer)
            )),
        }
    }

    /// Subscribes.
    pub(crate) fn subscribe(
        &mut self,
        topic: &str,
        subscription: &str,
        kind: SubType,
        position: InitialPosition,
        consumer_id: u64,
    ) -> Result<()> {
        let request_id = self.request_id();
        self.send(&BaseCommand {
            r#type: Type::Subscribe as i32,
            subscribe: Some(CommandSubscribe {
                topic: topic.into(),
                subscription: subscription.into(),
                sub_type: kind as i32,
                consumer_id,
                request_id,
                consumer_name: Some(format!("vela-bench-{consumer_id}")),
                initial_position: Some(position as i32),
                ..CommandSubscribe::default()
            }),
            ..BaseCommand::default()
        })?;
        let answer = self.receive("SUBSCRIBE")?;
        match &answer.success {
            Some(success) if success.request_id == request_id => Ok(()),
            _ => fail(format!(
                "SUBSCRIBE of {subscription} on {topic} was answered with {}",
                describe(&answer)
            )),
        }
    }

    /// A request id of this connection.
    pub(crate) fn request_id(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Writes a command, waiting for room.
    pub(crate) fn send(&mut self, command: &BaseCommand) -> Result<()> {
        let mut out = BytesMut::new();
        encode::command(command, &mut out);
        self.write(&out)
    }

    /// Writes bytes, waiting for room.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .context(|| "the connection broke while sending".into())
    }

    /// Waits for the next command that is neither keep-alive nor a notice.
    fn receive(&mut self, request: &str) -> Result<BaseCommand> {
        loop {
            while let Some(frame) = self.input.next()? {
                let command = decode_command(frame.command)
                    .context(|| format!("{request} was answered with a damaged command"))?;
                match command.r#type() {
                    Type::Ping => {
                        let mut out = BytesMut::new();
                        encode::pong(&mut out);
                        self.write(&out)?;
                    }
                    Type::Pong | Type::ActiveConsumerChange => {}
                    _ => return Ok(command),
                }
            }
            match self.stream.read(self.input.space()) {
                Ok(0) => {
                    return fail(format!(
                        "the broker closed the connection instead of answering {request}"
                    ));
                }
                Ok(n) => self.input.filled(n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return fail(format!(
                        "{request} was not answered within {} s",
                        REQUEST_TIMEOUT.as_secs()
                    ));
                }
                Err(error) => return fail(format!("no answer to {request}: {error}")),
            }
        }
    }
}

/// The first command of a connection.
pub(crate) fn connect(behind_proxy: Option<String>) -> BaseCommand {
    BaseCommand {
        r#type: Type::Connect as i32,
        connect: Some(CommandConnect {
            client_version: concat!("vela-bench ", env!("CARGO_PKG_VERSION")).into(),
            protocol_version: Some(PROTOCOL_VERSION),
            proxy_to_broker_url: behind_proxy,
            ..CommandConnect::default()
        }),
        ..BaseCommand::default()
    }
}

/// An unexpected command in words: its type, and the error it carries.
pub(crate) fn describe(command: &BaseCommand) -> String {
    if let Some(error) = &command.error {
        return format!("ERROR {:?}: {}", error.error(), error.message);
    }
    if let Some(error) = &command.send_error {
        return format!(
            "SEND_ERROR for sequence id {}: {:?}: {}",
            error.sequence_id,
            error.error(),
            error.message
        );
    }
    if let Some(close) = &command.close_producer {
        return format!("CLOSE_PRODUCER of producer {}", close.producer_id);
    }
    if let Some(close) = &command.close_consumer {
        return format!("CLOSE_CONSUMER of consumer {}", close.consumer_id);
    }
    command.r#type().as_str_name().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        assert_eq!(host_of("pulsar://a.b:6650"), Some("a.b:6650"));
        assert_eq!(host_of("pulsar://[::1]:6650/"), Some("[::1]:6650"));
        for bad in [
            "",
            "a:1",
            "pulsar://a",
            "pulsar://:1",
            "pulsar+ssl://a:1",
            "pulsar://a:99999",
        ] {
            assert_eq!(host_of(bad), None, "{bad}");
        }
    }
}
