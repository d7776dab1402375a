//! One connection to one broker: its handshake, its keep-alive, and what it has to write.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use vela_codec::{FrameDecoder, encode};
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandAuthResponse, CommandConnect, FeatureFlags};

use super::lookup::Owner;
use super::{AuthData, MachineConfig, Nanos, ProducerKey};

/// The version of the protocol that is spoken: that of Pulsar 3 and later.
pub const PROTOCOL_VERSION: i32 = 21;

/// Bytes of output at which a connection takes no more sends; they stay with their producers until the socket has taken some. A send
/// more may be there, and commands other than SEND are always taken.
pub const MAX_UNSENT: usize = 1024 * 1024;

/// Bytes of commands other than SEND that may wait for a broker to read them; at more the connection is closed. What a broker is told for
/// what it sends - PONG, FLOW, acknowledgements of what is damaged - would else grow for as long as it sends and does not read.
pub(crate) const MAX_UNSENT_COMMANDS: usize = 64 * 1024 * 1024;

/// The largest frame taken from a broker, in bytes. The broker's own limit is only known once it has answered, and memory is given to a
/// frame as it arrives, not as it is announced.
const MAX_FRAME: usize = 256 * 1024 * 1024;

/// From here on, in bytes, a payload is passed on as it is; below it is cheaper to copy than to write as a piece of its own.
const COPY_BELOW: usize = 4 * 1024;

/// What a connection has to write.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
    /// Bytes of `len` that are not of sends; at most so many.
    commands: usize,
    /// Whoever writes knows that there is something.
    told: bool,
}

impl Output {
    pub(crate) fn command(&mut self, command: &BaseCommand) {
        let before = self.tail.len();
        encode::command(command, &mut self.tail);
        let written = self.tail.len() - before;
        self.len += written;
        self.commands += written;
    }

    /// A command that is encoded already.
    pub(crate) fn push_command(&mut self, bytes: Bytes) {
        self.commands += bytes.len();
        self.push(bytes);
    }

    /// Bytes that are not of sends, as far as is known: never fewer.
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() < COPY_BELOW {
            self.tail.extend_from_slice(&bytes);
        } else {
            if !self.tail.is_empty() {
                self.chunks.push_back(self.tail.split().freeze());
            }
            self.chunks.push_back(bytes);
        }
    }

    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let taken = match self.chunks.pop_front() {
            Some(chunk) => chunk,
            None if !self.tail.is_empty() => self.tail.split().freeze(),
            None => {
                self.told = false;
                return None;
            }
        };
        self.len -= taken.len();
        self.commands = self.commands.min(self.len);
        Some(taken)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < MAX_UNSENT
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether whoever writes must be told now that there is something.
    pub(crate) fn tell(&mut self) -> bool {
        let tell = !self.told && self.len > 0;
        self.told |= tell;
        tell
    }
}

/// Where a connection leads. Those who want the same share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    /// What the socket connects to.
    pub(crate) url: String,
    /// The broker behind a proxy, as `host:port`.
    pub(crate) proxy_to: Option<String>,
    /// Which of several connections to the same broker.
    pub(crate) slot: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The socket is being connected.
    Connecting,
    /// CONNECT is sent, or the credentials for it are awaited.
    Handshake,
    Ready,
}

pub(crate) struct Connection {
    pub(crate) address: Address,
    pub(crate) state: State,
    pub(crate) decoder: FrameDecoder,
    pub(crate) output: Output,
    /// Wait for the connection to be ready.
    pub(crate) waiters: Vec<Owner>,
    /// Producers that have more than the connection has room for, in turn.
    pub(crate) blocked: VecDeque<ProducerKey>,
    pub(crate) protocol_version: i32,
    pub(crate) max_message_size: usize,
    pub(crate) features: FeatureFlags,
    /// The earliest timer that is set.
    pub(crate) armed: Nanos,
    started: Nanos,
    heard: Nanos,
    pinged: bool,
    /// CONNECT is sent.
    pub(crate) said_hello: bool,
    /// Credentials were asked for and are not there yet.
    pub(crate) authenticating: bool,
}

/// What a connection's timer found.
pub(crate) enum Overdue {
    Nothing,
    Ping,
    Dead(&'static str),
}

impl Connection {
    pub(crate) fn new(now: Nanos, address: Address) -> Self {
        Self {
            address,
            state: State::Connecting,
            decoder: FrameDecoder::new(MAX_FRAME),
            output: Output::default(),
            waiters: Vec::new(),
            blocked: VecDeque::new(),
            protocol_version: 0,
            max_message_size: 0,
            features: FeatureFlags::default(),
            armed: Nanos::MAX,
            started: now,
            heard: now,
            pinged: false,
            said_hello: false,
            authenticating: false,
        }
    }

    /// Whether it is one with TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.address.url.starts_with("pulsar+ssl://")
    }

    pub(crate) fn heard(&mut self, now: Nanos) {
        self.heard = now;
        self.pinged = false;
    }

    pub(crate) fn poll_timeout(&self, config: &MachineConfig) -> Nanos {
        if self.state != State::Ready {
            return self.started.saturating_add(config.connection_timeout);
        }
        let intervals = if self.pinged { 2 } else { 1 };
        self.heard
            .saturating_add(config.keep_alive_interval.saturating_mul(intervals))
    }

    pub(crate) fn handle_timeout(&mut self, now: Nanos, config: &MachineConfig) -> Overdue {
        if self.poll_timeout(config) > now {
            Overdue::Nothing
        } else if self.state != State::Ready {
            Overdue::Dead("no CONNECTED within connection_timeout")
        } else if self.pinged {
            Overdue::Dead("no answer to PING within keep_alive_interval")
        } else {
            self.pinged = true;
            let mut ping = BytesMut::new();
            encode::ping(&mut ping);
            self.output.push_command(ping.freeze());
            Overdue::Ping
        }
    }

    pub(crate) fn pong(&mut self) {
        let mut pong = BytesMut::new();
        encode::pong(&mut pong);
        self.output.push_command(pong.freeze());
    }

    /// Sends CONNECT.
    pub(crate) fn hello(&mut self, config: &MachineConfig, auth: Option<AuthData>) {
        let (method, data) = auth.map_or((None, None), |a| (Some(a.method), Some(a.data)));
        let connect = CommandConnect {
            client_version: config.client_version.clone(),
            protocol_version: Some(PROTOCOL_VERSION),
            auth_method_name: method,
            auth_data: data,
            proxy_to_broker_url: self.address.proxy_to.clone(),
            feature_flags: Some(FeatureFlags {
                supports_auth_refresh: Some(true),
                supports_broker_entry_metadata: Some(true),
                supports_partial_producer: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.output.command(&BaseCommand {
            connect: Some(connect),
            ..base(Type::Connect)
        });
        self.state = State::Handshake;
        self.said_hello = true;
    }

    /// Answers a challenge.
    pub(crate) fn respond(&mut self, config: &MachineConfig, auth: AuthData) {
        let response = CommandAuthResponse {
            client_version: Some(config.client_version.clone()),
            response: Some(vela_proto::AuthData {
                auth_method_name: Some(auth.method),
                auth_data: Some(auth.data),
            }),
            protocol_version: Some(PROTOCOL_VERSION),
        };
        self.output.command(&BaseCommand {
            auth_response: Some(response),
            ..base(Type::AuthResponse)
        });
    }
}

/// A command of nothing but its type.
pub(crate) fn base(kind: Type) -> BaseCommand {
    BaseCommand {
        r#type: kind as i32,
        ..Default::default()
    }
}
