//! Single messages of a topic: peeked at, examined, fetched by id.

use super::answer::{self, Refusal};
use super::params::Params;
use super::target::Target;
use super::{Answer, Shared};
use crate::engine::admin::{Answer as Reply, Ask, SubscriptionAsk};
use crate::store::log::Position;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::OwnedSemaphorePermit;
use vela_codec::compress;
use vela_codec::entry::Entry;
use vela_proto::{CompressionType, MessageMetadata};

/// Largest payload that is decompressed for an answer.
const PAYLOAD_MAX: usize = 64 << 20;
/// Payloads that may be on their way to clients at once, in units of [`PAYLOAD_UNIT`]: 256 MiB.
pub(super) const PAYLOADS: usize = 4096;
/// Bytes.
const PAYLOAD_UNIT: usize = 64 << 10;
/// The end of the year 9999, milliseconds since the Unix epoch.
const LAST_MS: u64 = 253_402_300_799_999;

pub(super) fn routes(base: &str) -> Router<Shared> {
    let at = |path: &str| format!("{base}/{{topic}}/{path}");
    Router::new()
        .route(
            &at("subscription/{subscription}/position/{position}"),
            get(peek),
        )
        .route(&at("examinemessage"), get(examine))
        .route(&at("ledger/{ledger}/entry/{entry}"), get(by_id))
}

async fn peek(State(shared): State<Shared>, target: Target) -> Answer {
    let number: i32 = target.number("position")?;
    target.one("Peek messages on a partitioned topic is not allowed")?;
    if number < 1 {
        return Ok(answer::internal(
            "messages are counted from 1: the position must be 1 or more",
        ));
    }
    let ask = Ask::Subscription {
        name: target.part("subscription").to_owned(),
        ask: SubscriptionAsk::Peek(u64::from(number.unsigned_abs())),
    };
    give(&shared, &target, ask, "Message not found").await
}

async fn examine(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    target.one("Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition")?;
    let number = params.get("messagePosition").unwrap_or("1").parse::<i64>();
    let number = number.map_err(|_| answer::bare(StatusCode::NOT_FOUND))?;
    let ask = Ask::Examine {
        earliest: params.get("initialPosition") == Some("earliest"),
        number: u64::try_from(number).unwrap_or(1),
    };
    give(
        &shared,
        &target,
        ask,
        "Could not examine messages due to the total message is zero",
    )
    .await
}

async fn by_id(State(shared): State<Shared>, target: Target) -> Answer {
    let position = Position::new(target.number("ledger")?, target.number("entry")?);
    target.one("GetMessageById is not allowed on partitioned-topic")?;
    give(
        &shared,
        &target,
        Ask::Entry(position),
        "Message id not found",
    )
    .await
}

async fn give(shared: &Shared, target: &Target, ask: Ask, none: &str) -> Answer {
    match shared.ask(&target.name, ask).await? {
        Reply::Entry { position, data } => message(shared, position, &data),
        Reply::NoMessage => Ok(answer::reason(StatusCode::NOT_FOUND, none)),
        other => Err(target.error(other)),
    }
}

/// A time as Pulsar's headers have it: zeros at the end of the fraction are cut.
pub(super) fn time(milliseconds: u64) -> String {
    // Times are what a client wrote, and what formats them knows four digits of a year.
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds.min(LAST_MS));
    let text = humantime::format_rfc3339_millis(at).to_string();
    let text = text.trim_end_matches('Z');
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    };
    format!("{text}Z")
}

/// A payload that counts as on its way until the last of it was written.
struct Sent {
    payload: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// A stored entry: its payload as the body, its metadata as headers. A batch comes as a whole.
fn message(shared: &Shared, position: Position, data: &[u8]) -> Answer {
    let broken = || -> Refusal {
        answer::internal(&format!(
            "the metadata of message {position} cannot be read"
        ))
        .into()
    };
    let entry = Entry::parse(data).map_err(|_| broken())?;
    let metadata = entry.decode_metadata().map_err(|_| broken())?;
    let encrypted = !metadata.encryption_keys.is_empty();
    let compression = metadata.compression.unwrap_or(0);
    let announced = metadata.uncompressed_size.unwrap_or(0) as usize;
    let units = announced.min(PAYLOAD_MAX).max(entry.payload.len()) / PAYLOAD_UNIT + 1;
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    let Ok(permit) = Arc::clone(&shared.payloads).try_acquire_many_owned(units) else {
        return Ok(answer::reason(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "{} bytes of messages are on their way to clients that have not read them; try again",
                PAYLOADS * PAYLOAD_UNIT
            ),
        ));
    };
    let payload = match CompressionType::try_from(compression) {
        Ok(CompressionType::None) => entry.payload.to_vec(),
        _ if encrypted => entry.payload.to_vec(),
        Ok(kind) => compress::decompress(kind, entry.payload, announced, PAYLOAD_MAX)
            .map_err(|error| answer::internal(&error.to_string()))?,
        Err(_) => return Err(broken()),
    };
    let payload = Bytes::from_owner(Sent {
        payload,
        _permit: permit,
    });
    let mut response = ([(header::CONTENT_TYPE, "application/json")], payload).into_response();
    for (name, value) in headers(position, &metadata, entry.payload.len()) {
        // Header values are Latin-1 at most; what is not comes with question marks, as servers of Java do it.
        let value: Vec<u8> = value
            .chars()
            .map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?'))
            .map(|byte| if byte < 32 || byte == 127 { b'?' } else { byte })
            .collect();
        let name = HeaderName::from_bytes(format!("x-pulsar-{name}").as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&value)) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn headers(
    position: Position,
    metadata: &MessageMetadata,
    size: usize,
) -> Vec<(&'static str, String)> {
    let properties: Map<String, Value> = metadata
        .properties
        .iter()
        .map(|each| (each.key.clone(), Value::from(each.value.as_str())))
        .collect();
    let mut headers = vec![
        (
            "message-id",
            format!("{}:{}", position.ledger, position.entry),
        ),
        ("property", Value::Object(properties).to_string()),
        ("publish-time", time(metadata.publish_time)),
        (
            "is-encrypted",
            (!metadata.encryption_keys.is_empty()).to_string(),
        ),
        ("producer-name", metadata.producer_name.clone()),
        ("sequence-id", metadata.sequence_id.to_string()),
        ("txn-consumable", "true".to_owned()),
    ];
    let mut add = |name, value: Option<String>| {
        if let Some(value) = value {
            headers.push((name, value));
        }
    };
    add(
        "event-time",
        metadata.event_time.filter(|at| *at > 0).map(time),
    );
    let deliver_at = metadata
        .deliver_at_time
        .and_then(|at| u64::try_from(at).ok());
    add("deliver-at-time", deliver_at.map(time));
    let batch = metadata.num_messages_in_batch;
    add("num-batch-message", batch.map(|count| count.to_string()));
    add("batch-size", batch.map(|_| size.to_string()));
    let null_value = metadata.null_value.filter(|null| *null);
    add("null-value", null_value.map(|null| null.to_string()));
    add("partition-key", metadata.partition_key.clone());
    let base64 = metadata.partition_key_b64_encoded.filter(|set| *set);
    add(
        "partition-key-b64-encoded",
        base64.map(|set| set.to_string()),
    );
    let null_key = metadata.null_partition_key.filter(|set| *set);
    add("null-partition-key", null_key.map(|set| set.to_string()));
    add("replicated-from", metadata.replicated_from.clone());
    let compression = metadata.compression.filter(|kind| *kind != 0);
    let compression = compression.and_then(|kind| CompressionType::try_from(kind).ok());
    add(
        "compression",
        compression.map(|kind| kind.as_str_name().to_owned()),
    );
    let uncompressed = metadata.uncompressed_size.filter(|size| *size > 0);
    add(
        "uncompressed-size",
        uncompressed.map(|size| size.to_string()),
    );
    add("encryption-algo", metadata.encryption_algo.clone());
    add(
        "marker-type",
        metadata.marker_type.map(|kind| kind.to_string()),
    );
    add(
        "highest-sequence-id",
        metadata
            .highest_sequence_id
            .filter(|id| *id > 0)
            .map(|id| id.to_string()),
    );
    add("uuid", metadata.uuid.clone());
    add(
        "num-chunks-from-msg",
        metadata.num_chunks_from_msg.map(|count| count.to_string()),
    );
    add(
        "total-chunk-msg-size",
        metadata.total_chunk_msg_size.map(|size| size.to_string()),
    );
    add("chunk-id", metadata.chunk_id.map(|id| id.to_string()));
    headers
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_end_where_their_digits_do() {
        assert_eq!(time(1_796_020_866_884), "2026-11-30T06:41:06.884Z");
        assert_eq!(time(1_796_020_870_940), "2026-11-30T06:41:10.94Z");
        assert_eq!(time(1_796_020_870_000), "2026-11-30T06:41:10Z");
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
    }

    /// A publish time or an event time is whatever its producer says.
    #[test]
    fn times_beyond_the_calendar_are_its_end() {
        for far in [253_402_300_800_000, u64::MAX / 2, u64::MAX] {
            assert_eq!(time(far), "9999-12-31T23:59:59.999Z");
        }
    }
}
