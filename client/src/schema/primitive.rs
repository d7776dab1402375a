//! Numbers and times: fixed widths, the highest byte first.

use super::{Schema, SchemaInfo, SchemaType};
use crate::{Error, Result};
use bytes::Bytes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOS_PER_SECOND: i128 = 1_000_000_000;
const NANOS_PER_DAY: u64 = 86_400_000_000_000;

/// A type of a fixed width: its value, its name, how it becomes bytes and how it comes back.
macro_rules! fixed {
    ($($(#[$doc:meta])* $schema:ident $kind:ident $name:literal $value:ty [$width:literal] $encode:expr, $decode:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $schema;

        impl Schema for $schema {
            type Value = $value;

            fn info(&self) -> Option<SchemaInfo> {
                Some(SchemaInfo::plain($name, SchemaType::$kind))
            }

            fn encode(&self, value: &$value) -> Result<Bytes> {
                let encode: fn(&$value) -> Result<[u8; $width]> = $encode;
                Ok(Bytes::copy_from_slice(&encode(value)?))
            }

            fn decode(&self, payload: &Bytes, _version: Option<&[u8]>) -> Result<$value> {
                let decode: fn([u8; $width]) -> Result<$value> = $decode;
                let Ok(bytes) = <[u8; $width]>::try_from(payload.as_ref()) else {
                    return Err(Error::Schema(format!("a value of {} has {} bytes, not {}", $name, $width, payload.len())));
                };
                decode(bytes)
            }
        }
    )*};
}

fixed! {
    /// `BOOLEAN`.
    Bool Bool "Boolean" bool [1] |value| Ok([u8::from(*value)]), |[byte]| Ok(byte != 0);
    /// `INT8`.
    Int8 Int8 "INT8" i8 [1] |value| Ok(value.to_be_bytes()), |bytes| Ok(i8::from_be_bytes(bytes));
    /// `INT16`.
    Int16 Int16 "INT16" i16 [2] |value| Ok(value.to_be_bytes()), |bytes| Ok(i16::from_be_bytes(bytes));
    /// `INT32`.
    Int32 Int32 "INT32" i32 [4] |value| Ok(value.to_be_bytes()), |bytes| Ok(i32::from_be_bytes(bytes));
    /// `INT64`.
    Int64 Int64 "INT64" i64 [8] |value| Ok(value.to_be_bytes()), |bytes| Ok(i64::from_be_bytes(bytes));
    /// `FLOAT`.
    Float32 Float "Float" f32 [4] |value| Ok(value.to_be_bytes()), |bytes| Ok(f32::from_be_bytes(bytes));
    /// `DOUBLE`.
    Float64 Double "Double" f64 [8] |value| Ok(value.to_be_bytes()), |bytes| Ok(f64::from_be_bytes(bytes));
    /// `DATE`: a time in whole milliseconds.
    Date Date "Date" SystemTime [8] |value| Ok(to_millis(*value)?.to_be_bytes()), |bytes| of_millis(i64::from_be_bytes(bytes));
    /// `TIME`: a time in whole milliseconds.
    Time Time "Time" SystemTime [8] |value| Ok(to_millis(*value)?.to_be_bytes()), |bytes| of_millis(i64::from_be_bytes(bytes));
    /// `TIMESTAMP`: a time in whole milliseconds.
    Timestamp Timestamp "Timestamp" SystemTime [8] |value| Ok(to_millis(*value)?.to_be_bytes()), |bytes| of_millis(i64::from_be_bytes(bytes));
    /// `INSTANT`: a time in nanoseconds.
    Instant Instant "Instant" SystemTime [12] |value| to_instant(*value), of_instant;
    /// `LOCAL_DATE`: days since 1970-01-01.
    LocalDate LocalDate "LocalDate" i64 [8] |value| Ok(value.to_be_bytes()), |bytes| Ok(i64::from_be_bytes(bytes));
    /// `LOCAL_TIME`: the time since midnight.
    LocalTime LocalTime "LocalTime" Duration [8] |value| Ok(to_midnight(*value)?.to_be_bytes()), |bytes| of_midnight(u64::from_be_bytes(bytes));
    /// `LOCAL_DATE_TIME`: days since 1970-01-01, and the time since midnight.
    LocalDateTime LocalDateTime "LocalDateTime" (i64, Duration) [16] |(days, time)| {
        let mut bytes = [0; 16];
        let (first, second) = bytes.split_at_mut(8);
        first.copy_from_slice(&days.to_be_bytes());
        second.copy_from_slice(&to_midnight(*time)?.to_be_bytes());
        Ok(bytes)
    }, |bytes| {
        let both = u128::from_be_bytes(bytes);
        let days = i64::from_be_bytes(((both >> 64) as u64).to_be_bytes());
        Ok((days, of_midnight(both as u64)?))
    };
}

fn range(what: &str) -> Error {
    Error::Schema(format!("{what} is out of the range of its type"))
}

/// Nanoseconds since 1970, negative before.
fn nanos(time: SystemTime) -> Result<i128> {
    let signed =
        |duration: Duration| i128::try_from(duration.as_nanos()).map_err(|_| range("the time"));
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => signed(since),
        Err(before) => Ok(-signed(before.duration())?),
    }
}

fn of_nanos(nanos: i128) -> Result<SystemTime> {
    let magnitude = nanos.unsigned_abs();
    let seconds = u64::try_from(magnitude / 1_000_000_000).map_err(|_| range("the time"))?;
    let rest = u32::try_from(magnitude % 1_000_000_000).map_err(|_| range("the time"))?;
    let distance = Duration::new(seconds, rest);
    let time = if nanos < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.ok_or_else(|| range("the time"))
}

fn to_millis(time: SystemTime) -> Result<i64> {
    i64::try_from(nanos(time)?.div_euclid(1_000_000)).map_err(|_| range("the time"))
}

fn of_millis(millis: i64) -> Result<SystemTime> {
    of_nanos(i128::from(millis) * 1_000_000)
}

fn to_instant(time: SystemTime) -> Result<[u8; 12]> {
    let nanos = nanos(time)?;
    let seconds =
        i64::try_from(nanos.div_euclid(NANOS_PER_SECOND)).map_err(|_| range("the time"))?;
    let rest = u32::try_from(nanos.rem_euclid(NANOS_PER_SECOND)).map_err(|_| range("the time"))?;
    let mut bytes = [0; 12];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&seconds.to_be_bytes());
    second.copy_from_slice(&rest.to_be_bytes());
    Ok(bytes)
}

fn of_instant(bytes: [u8; 12]) -> Result<SystemTime> {
    let (first, second) = bytes.split_at(8);
    let seconds = i64::from_be_bytes(first.try_into().map_err(|_| range("the time"))?);
    let rest = i32::from_be_bytes(second.try_into().map_err(|_| range("the time"))?);
    of_nanos(i128::from(seconds) * NANOS_PER_SECOND + i128::from(rest))
}

fn to_midnight(time: Duration) -> Result<u64> {
    let nanos = u64::try_from(time.as_nanos())
        .ok()
        .filter(|nanos| *nanos < NANOS_PER_DAY);
    nanos.ok_or_else(|| range("the time of day"))
}

fn of_midnight(nanos: u64) -> Result<Duration> {
    if nanos >= NANOS_PER_DAY {
        return Err(range("the time of day"));
    }
    Ok(Duration::from_nanos(nanos))
}
