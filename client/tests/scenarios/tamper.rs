//! A proxy that reads every frame between a client and a broker, may change the MESSAGEs, and keeps the account of permits.

use bytes::{Bytes, BytesMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use vela_codec::{decode_command, encode, entry::Entry};
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandAck, CommandMessage, MessageMetadata};

/// What the account says.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// MESSAGE commands.
    pub(crate) commands: AtomicU64,
    /// Sum of what they cost, as the broker said or, where it does not, by the rule of all brokers.
    pub(crate) charged: AtomicU64,
    /// Sum of all FLOW.
    pub(crate) granted: AtomicU64,
    /// Connections accepted.
    pub(crate) connections: AtomicU64,
    /// MESSAGE commands that came with `message_permits`.
    pub(crate) said: AtomicU64,
    /// ACKs that tell of damage, by the code.
    pub(crate) errors: Mutex<Vec<i32>>,
}

impl Account {
    pub(crate) fn get(value: &AtomicU64) -> u64 {
        value.load(Ordering::SeqCst)
    }
}

/// Changes a MESSAGE and the entry behind it.
pub(crate) type Tamper =
    Arc<dyn Fn(&mut CommandMessage, &MessageMetadata, Bytes) -> Bytes + Send + Sync>;

pub(crate) struct Proxy {
    pub(crate) url: String,
    pub(crate) account: Arc<Account>,
}

impl Proxy {
    pub(crate) async fn start(
        to: &str,
        tamper: impl Fn(&mut CommandMessage, &MessageMetadata, Bytes) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("pulsar://{}", listener.local_addr().unwrap());
        let to = to.trim_start_matches("pulsar://").to_owned();
        let account = Arc::new(Account::default());
        let tamper: Tamper = Arc::new(tamper);
        let (counting, here) = (Arc::clone(&account), url.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counting.connections.fetch_add(1, Ordering::SeqCst);
                let (account, tamper) = (Arc::clone(&counting), Arc::clone(&tamper));
                let (to, here) = (to.clone(), here.clone());
                tokio::spawn(async move {
                    let Ok(broker) = TcpStream::connect(&to).await else {
                        return;
                    };
                    let (client_in, client_out) = client.into_split();
                    let (broker_in, broker_out) = broker.into_split();
                    let up = carry(client_in, broker_out, |command, rest| {
                        said_by_client(&account, command);
                        rest
                    });
                    let down = carry(broker_in, client_out, |command, rest| {
                        said_by_broker(&account, &tamper, &here, command, rest)
                    });
                    // Whoever closes first closes both.
                    tokio::select! {
                        () = up => {}
                        () = down => {}
                    }
                });
            }
        });
        Self { url, account }
    }
}

fn said_by_client(account: &Account, command: &mut BaseCommand) {
    if let Some(flow) = &command.flow {
        account
            .granted
            .fetch_add(u64::from(flow.message_permits), Ordering::SeqCst);
    }
    if let Some(CommandAck {
        validation_error: Some(error),
        ..
    }) = &command.ack
    {
        account.errors.lock().unwrap().push(*error);
    }
}

fn said_by_broker(
    account: &Account,
    tamper: &Tamper,
    here: &str,
    command: &mut BaseCommand,
    rest: Bytes,
) -> Bytes {
    if let Some(answer) = &mut command.lookup_topic_response {
        // Back through here, wherever the broker is.
        answer.broker_service_url = Some(here.to_owned());
        answer.proxy_through_service_url = Some(false);
    }
    let Some(message) = &mut command.message else {
        return rest;
    };
    let metadata = Entry::parse(&rest).unwrap().decode_metadata().unwrap();
    let bits: u32 = message.ack_set.iter().map(|word| word.count_ones()).sum();
    let by_rule = match bits {
        0 => u32::try_from(metadata.num_messages_in_batch()).unwrap(),
        bits => bits,
    };
    let cost = message.message_permits.unwrap_or(by_rule);
    let said = u64::from(message.message_permits.is_some());
    account.said.fetch_add(said, Ordering::SeqCst);
    account.commands.fetch_add(1, Ordering::SeqCst);
    account.charged.fetch_add(u64::from(cost), Ordering::SeqCst);
    tamper(message, &metadata, rest)
}

/// Carries frames until one side is gone.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut change: impl FnMut(&mut BaseCommand, Bytes) -> Bytes,
) {
    loop {
        let Ok(size) = from.read_u32().await else {
            return;
        };
        let mut body = vec![0; size as usize];
        if from.read_exact(&mut body).await.is_err() {
            return;
        }
        let body = Bytes::from(body);
        let size = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
        let rest = body.slice(4 + size..);
        let mut out = BytesMut::new();
        let kind = vela_codec::hot::command_type(&body[4..4 + size]).unwrap();
        if matches!(
            kind,
            Type::Message | Type::LookupResponse | Type::Flow | Type::Ack
        ) {
            let mut command = decode_command(&body[4..4 + size]).unwrap();
            let rest = change(&mut command, rest);
            encode::command_with_rest(&command, rest.len(), &mut out);
            out.extend_from_slice(&rest);
        } else {
            out.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
            out.extend_from_slice(&body);
        }
        if to.write_all(&out).await.is_err() {
            return;
        }
    }
}
