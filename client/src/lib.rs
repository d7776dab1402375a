//! A client of brokers that speak the Apache Pulsar binary protocol.
//!
//! Two things set it apart. A send is *admitted* before it is queued: it is charged its encoded payload and a fixed allowance
//! against one limit of the client, on the caller's own task, and whoever finds no room waits there or is told so. And a consumer
//! returns exactly the permits the broker charged for each command, whatever became of the messages in it.
//!
//! [`core`] is the whole client without any IO; everything beside it is a thin rim of tokio around it.

pub mod admission;
pub mod auth;
pub mod blocking;
mod builder;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod consumer;
pub mod core;
mod dead_letter;
mod driver;
mod error;
mod id;
mod inbox;
pub mod message;
mod multi;
mod net;
mod part;
mod partitioned;
mod pattern;
mod producer;
mod producer_builder;
mod reader;
pub mod routing;
pub mod schema;
mod send;
mod sink;
pub mod tls;
pub mod topic;

pub use auth::AuthProvider;
pub use builder::{ConsumerBuilder, IntoTopics};
pub use client::{Client, ClientBuilder, DEFAULT_MEMORY_LIMIT};
pub use consumer::Consumer;
pub use core::consumer::{
    ConsumerStats, CryptoFailureAction, DeadLetterPolicy, KeySharedPolicy, ReceivedMessage,
    RedeliveryBackoff, SubscriptionType,
};
pub use core::{AccessMode, Batching};
pub use error::{Error, Result};
pub use id::{InitialPosition, MessageId, StartPosition};
pub use message::{AsMessageId, Message, MessageKey, Outgoing, OutgoingMessage};
pub use pattern::RegexSubscriptionMode;
pub use producer::Producer;
pub use producer_builder::ProducerBuilder;
pub use reader::{Reader, ReaderBuilder};
pub use routing::{HashingScheme, MessageRouter, RoutingMode};
pub use schema::{Schema, SchemaInfo};
pub use send::SendFuture;
pub use sink::ProducerSink;
pub use tls::TlsOptions;
pub use topic::TopicName;
pub use vela_limiter::{MemoryLimit, Reservation};
pub use vela_proto::CompressionType;
