//! What `vela-client` can be told, named as Pulsar's own `pulsar-client` names it.

use crate::InitialPosition;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Produces to and consumes from a broker that speaks the Apache Pulsar protocol.
#[derive(Debug, Parser)]
#[command(name = "vela-client", version, about, max_term_width = 120)]
pub struct Arguments {
    /// How to reach the broker.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How to reach the broker.
#[derive(Debug, Args)]
pub struct Connection {
    /// The broker: pulsar://HOST:PORT, or pulsar+ssl://HOST:PORT for TLS; several hosts by commas
    #[arg(
        long,
        global = true,
        env = "PULSAR_URL",
        default_value = "pulsar://127.0.0.1:6650"
    )]
    pub url: String,
    /// A token: the text, or token:TEXT, file:///PATH, env:NAME
    #[arg(long, global = true, env = "PULSAR_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Trust the certificates in this file instead of the public authorities
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_trust_cert_path: Option<PathBuf>,
    /// The client's own certificate
    #[arg(long, global = true, value_name = "FILE", requires = "tls_key_file")]
    pub tls_certificate_file: Option<PathBuf>,
    /// The key of the client's certificate
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "tls_certificate_file"
    )]
    pub tls_key_file: Option<PathBuf>,
    /// Take any certificate (tests only)
    #[arg(long, global = true)]
    pub tls_allow_insecure: bool,
    /// Take a certificate for another host's name
    #[arg(long, global = true)]
    pub tls_no_hostname_verification: bool,
    /// Which of the broker's addresses to use
    #[arg(long, global = true)]
    pub listener_name: Option<String>,
    /// Give up a request after this long
    #[arg(long, global = true, default_value = "30s", value_parser = humantime::parse_duration)]
    pub operation_timeout: std::time::Duration,
    /// Memory for messages that wait for their receipts, in bytes; 0: no limit
    #[arg(long, global = true, default_value_t = 64 << 20)]
    pub memory_limit: u64,
    /// Write messages and the summary as JSON, one object per line, to standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing on standard error but errors
    #[arg(long, global = true)]
    pub quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send messages to a topic
    Produce(Produce),
    /// Receive messages of a subscription
    Consume(Consume),
    /// Read messages from a position, without a subscription
    Read(Read),
}

/// `produce`.
#[derive(Debug, Args)]
pub struct Produce {
    /// The topic
    pub topic: String,
    /// A message to send; may be repeated
    #[arg(long, short, value_name = "TEXT")]
    pub messages: Vec<String>,
    /// A file to send as one message (one per line with --lines); may be repeated
    #[arg(long, short, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Send each line of standard input, and of files, as a message
    #[arg(long)]
    pub lines: bool,
    /// Send messages of this many bytes
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["messages", "files", "lines"])]
    pub size: Option<usize>,
    /// How often to send all messages given; with --size how many messages. 0: until interrupted
    #[arg(long, short, visible_alias = "count", default_value_t = 1)]
    pub num_produce: u64,
    /// Messages per second; 0: as fast as it goes
    #[arg(long, short, default_value_t = 0.0)]
    pub rate: f64,
    /// The key of all messages; an n in braces stands for a running number
    #[arg(long, short)]
    pub key: Option<String>,
    /// A property NAME=VALUE of all messages; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    pub properties: Vec<(String, String)>,
    /// Deliver messages no sooner than this after they are sent
    #[arg(long, value_parser = humantime::parse_duration)]
    pub deliver_after: Option<std::time::Duration>,
    /// The producer's name
    #[arg(long)]
    pub producer_name: Option<String>,
    /// Send each message on its own
    #[arg(long, visible_alias = "db")]
    pub disable_batching: bool,
    /// Most messages of a batch
    #[arg(long, default_value_t = 1000)]
    pub batching_max_messages: u32,
    /// Most bytes of a batch
    #[arg(long, default_value_t = 128 << 10)]
    pub batching_max_bytes: usize,
    /// How long a batch waits for more
    #[arg(long, default_value = "1ms", value_parser = humantime::parse_duration)]
    pub batching_max_publish_delay: std::time::Duration,
    /// Send messages in chunks that are larger than the broker takes
    #[arg(long, requires = "disable_batching")]
    pub chunking: bool,
    /// How to compress payloads
    #[arg(long, value_enum, default_value_t = Compression::None)]
    pub compression: Compression,
    /// Give a send up after this long; 0s: never
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub send_timeout: std::time::Duration,
    /// The schema of the messages
    #[command(flatten)]
    pub schema: SchemaArguments,
}

/// The schema of the messages.
#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// The kind of schema the topic has. Values are checked where text can be (string, json, avro: values in JSON)
    #[arg(long, value_enum, default_value_t = SchemaKind::Bytes)]
    pub schema_type: SchemaKind,
    /// The definition of a schema of kind json or avro: a file
    #[arg(long, value_name = "FILE")]
    pub schema_definition: Option<PathBuf>,
}

/// Kinds of schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaKind {
    /// None.
    Bytes,
    /// Text.
    String,
    /// JSON with a definition.
    Json,
    /// Avro; values are written and shown as JSON.
    Avro,
}

/// How to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compression {
    None,
    Lz4,
    Zlib,
    Zstd,
    Snappy,
}

/// `consume`.
#[derive(Debug, Args)]
pub struct Consume {
    /// The topic; several by commas; with --regex a pattern
    pub topic: String,
    /// The subscription
    #[arg(long, short)]
    pub subscription_name: String,
    /// Its type
    #[arg(long, short = 't', value_enum, default_value_t = Kind::Exclusive)]
    pub subscription_type: Kind,
    /// Where a new subscription begins
    #[arg(long, short = 'p', value_enum, default_value_t = Position::Latest)]
    pub subscription_position: Position,
    /// The topic is a pattern
    #[arg(long, short = 'e')]
    pub regex: bool,
    /// Do not acknowledge: the messages stay with the subscription
    #[arg(long)]
    pub no_ack: bool,
    /// The consumer's name
    #[arg(long)]
    pub consumer_name: Option<String>,
    /// What consume and read share
    #[command(flatten)]
    pub receive: Receive,
}

/// `read`.
#[derive(Debug, Args)]
pub struct Read {
    /// The topic
    pub topic: String,
    /// Where to begin: earliest, latest, or LEDGER:ENTRY[:PARTITION[:INDEX]]
    #[arg(long, short = 'm', default_value = "latest")]
    pub start_message_id: String,
    /// Begin at that message, not behind it
    #[arg(long, short = 'i')]
    pub start_message_id_inclusive: bool,
    /// Begin at the first message published at this time or later, in milliseconds since 1970
    #[arg(long, conflicts_with_all = ["start_message_id", "start_message_id_inclusive"])]
    pub start_publish_time: Option<u64>,
    /// End when the last message there is has been read
    #[arg(long)]
    pub until_end: bool,
    /// What consume and read share
    #[command(flatten)]
    pub receive: Receive,
}

/// What consume and read share.
#[derive(Debug, Args)]
pub struct Receive {
    /// How many messages; 0: until interrupted
    #[arg(long, short, visible_alias = "num-messages", default_value_t = 1)]
    pub num: u64,
    /// Messages per second; 0: as fast as they come
    #[arg(long, short, default_value_t = 0.0)]
    pub rate: f64,
    /// Messages the broker may send ahead
    #[arg(long, short = 'q', default_value_t = 1000)]
    pub receiver_queue_size: u32,
    /// End with an error if no message comes for this long
    #[arg(long, value_parser = humantime::parse_duration)]
    pub timeout: Option<std::time::Duration>,
    /// How to show messages
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Count messages only
    #[arg(long)]
    pub hide_content: bool,
    /// The schema of the messages
    #[command(flatten)]
    pub schema: SchemaArguments,
}

/// Types of subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    #[value(alias = "Exclusive")]
    Exclusive,
    #[value(alias = "Shared")]
    Shared,
    #[value(alias = "Failover")]
    Failover,
    #[value(name = "key_shared", aliases = ["Key_Shared", "key-shared"])]
    KeyShared,
}

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Position {
    #[value(alias = "Latest")]
    Latest,
    #[value(alias = "Earliest")]
    Earliest,
}

impl From<Position> for InitialPosition {
    fn from(position: Position) -> Self {
        match position {
            Position::Latest => Self::Latest,
            Position::Earliest => Self::Earliest,
        }
    }
}

/// How to show payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// As text; what is no text is replaced.
    Text,
    /// As hexadecimal digits.
    Hex,
    /// The bytes alone, nothing between them.
    Raw,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_options_fit_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn they_are_those_of_pulsar_client() {
        let line =
            "vela-client --url pulsar://h:1 consume -s sub -t Shared -p Earliest -n 0 -q 5 t";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let Command::Consume(consume) = arguments.command else {
            panic!()
        };
        assert_eq!(
            (consume.subscription_type, consume.receive.num),
            (Kind::Shared, 0)
        );
        let line = "vela-client produce -m a -m b -n 3 -r 2.5 -k key -p x=y --json t";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        assert!(arguments.connection.json);
        let Command::Produce(produce) = arguments.command else {
            panic!()
        };
        assert_eq!(produce.messages, ["a", "b"]);
        assert_eq!(produce.properties, [("x".to_owned(), "y".to_owned())]);
        for wrong in [
            "produce t -p x",
            "consume t",
            "produce t --size 5 -m a",
            "produce t --chunking",
            "read t --tls-key-file k",
        ] {
            Arguments::try_parse_from(format!("vela-client {wrong}").split(' ')).unwrap_err();
        }
    }
}
