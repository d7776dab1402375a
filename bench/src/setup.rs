//! Opening everything a run needs, with blocking requests, and dealing it out to the executors.
//!
//! A topic and all its producers and consumers stay with one executor, so that nothing need be shared to verify it.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::Arc;

use bytes::BytesMut;
use vela_codec::encode;
use vela_proto::base_command::Type;
use vela_proto::command_subscribe::{InitialPosition, SubType};
use vela_proto::{BaseCommand, CommandSend};

use crate::connection::{Address, Connection};
use crate::error::{Context as _, Failure, Result};
use crate::measure::{self, unix_ms};
use crate::message::{Body, Template};
use crate::scenario::{Settings, SubscriptionType};

/// Bytes asked for in one read of a connection at first.
const READ_SIZE: usize = 16 * 1024;
/// The same of a stalled connection, which receives the answers to two requests only.
const STALLED_INPUT: usize = 256;

/// Which run, and where.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// Identifies the messages of this run. Consumers ignore those of others.
    pub(crate) run: u32,
    /// Name of the subscription; several are numbered.
    pub(crate) subscription: String,
    /// A new subscription begins with the oldest message, not behind the newest.
    pub(crate) earliest: bool,
}

/// A producer of an executor, by its index there, which is its id.
#[derive(Debug)]
pub(crate) struct ProducerPart {
    pub(crate) link: usize,
    pub(crate) template: Template,
    pub(crate) topic: u32,
}

/// A device of an executor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DevicePart {
    /// Index of its producer in the executor.
    pub(crate) producer: u32,
    /// Its number in the run.
    pub(crate) id: u32,
}

/// A consumer of an executor, by its index there, which is its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerPart {
    pub(crate) link: usize,
    pub(crate) topic: u32,
    pub(crate) subscription: u32,
}

/// What one executor does.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) connections: Vec<Connection>,
    pub(crate) producers: Vec<ProducerPart>,
    pub(crate) devices: Vec<DevicePart>,
    pub(crate) consumers: Vec<ConsumerPart>,
    /// Its share of the window.
    pub(crate) window: usize,
    /// Its share of the backlog.
    pub(crate) backlog: u64,
    /// Its share of the rate: so many of so many parts.
    pub(crate) share: (u64, u64),
}

/// What is open.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    /// Number of all producers.
    pub(crate) producers: usize,
    /// Number of all consumers.
    pub(crate) consumers: usize,
    pub(crate) topics: Arc<[String]>,
    pub(crate) subscriptions: Arc<[String]>,
    /// Held to the end of the run.
    _stalled: Vec<TcpStream>,
}

/// Client and topic of each device, or of each producer if messages have no key.
fn devices(settings: &Settings) -> Vec<(u32, u32)> {
    let (clients, topics) = (settings.clients.max(1), settings.topics.max(1));
    match (settings.clients, settings.devices) {
        (0, _) => Vec::new(),
        (_, 0) => (0..clients.max(topics))
            .map(|i| (i % clients, i % topics))
            .collect(),
        // One device after the other goes to another client and another topic.
        (_, devices) => (0..devices)
            .map(|d| ((d / topics + d % topics) % clients, d % topics))
            .collect(),
    }
}

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Client(u32),
    Application(u32),
}

struct Opener<'a> {
    settings: &'a Settings,
    place: &'a Place,
    parts: Vec<Part>,
    links: HashMap<(usize, Owner, Address), usize>,
}

impl Opener<'_> {
    /// The executor that has a topic.
    fn part_of(&self, topic: u32) -> usize {
        topic as usize % self.parts.len().max(1)
    }

    /// The owner's connection to an address: the executor's and its index there.
    fn connection(
        &mut self,
        topic: u32,
        owner: Owner,
        address: &Address,
    ) -> Result<(&mut Part, usize)> {
        let at = self.part_of(topic);
        let Some(part) = self.parts.get_mut(at) else {
            return Err(Failure("no executor".into()));
        };
        let link = match self.links.get(&(at, owner, address.clone())) {
            Some(&link) => link,
            None => {
                part.connections.push(Connection::open(address, READ_SIZE)?);
                let link = part.connections.len() - 1;
                self.links.insert((at, owner, address.clone()), link);
                link
            }
        };
        Ok((part, link))
    }

    fn consumers(&mut self, topics: &[(Address, String)], subscriptions: &[String]) -> Result<()> {
        let (settings, place) = (self.settings, self.place);
        let kind = match settings.subscription_type {
            SubscriptionType::Exclusive => SubType::Exclusive,
            SubscriptionType::Shared => SubType::Shared,
            SubscriptionType::KeyShared => SubType::KeyShared,
        };
        let position = match place.earliest {
            true => InitialPosition::Earliest,
            false => InitialPosition::Latest,
        };
        let each = u64::from(settings.consumers);
        let all = subscriptions.len() as u64 * topics.len() as u64 * each;
        let mut ordinal = 0;
        for (s, subscription) in subscriptions.iter().enumerate() {
            for (t, (address, topic)) in topics.iter().enumerate() {
                for _ in 0..each {
                    let application = match settings.applications {
                        0 => ordinal,
                        // Neighbours share one.
                        applications => ordinal * u64::from(applications) / all.max(1),
                    };
                    ordinal += 1;
                    let owner = Owner::Application(application as u32);
                    let (part, link) = self.connection(t as u32, owner, address)?;
                    let id = part.consumers.len() as u64;
                    if let Some(connection) = part.connections.get_mut(link) {
                        connection.subscribe(topic, subscription, kind, position, id)?;
                    }
                    part.consumers.push(ConsumerPart {
                        link,
                        topic: t as u32,
                        subscription: s as u32,
                    });
                }
            }
        }
        Ok(())
    }

    fn producers(&mut self, topics: &[(Address, String)]) -> Result<()> {
        let settings = self.settings;
        let run = self.place.run;
        let body = Arc::new(Body::new(settings.size as usize));
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        for ((client, t), id) in devices(settings).into_iter().zip(0..) {
            let Some((address, topic)) = topics.get(t as usize) else {
                continue;
            };
            let producers = known.len() as u32;
            let (part, link) = self.connection(t, Owner::Client(client), address)?;
            let producer = match known.get(&(client, t)) {
                Some(&producer) => producer,
                None => {
                    let producer = part.producers.len() as u32;
                    let name = match part.connections.get_mut(link) {
                        Some(connection) => connection.producer(topic, producer.into())?,
                        None => continue,
                    };
                    part.producers.push(ProducerPart {
                        link,
                        template: Template::new(
                            producer.into(),
                            &name,
                            (run, producers),
                            &body,
                            settings.batch as usize,
                            settings.devices > 0,
                            unix_ms(),
                        )?,
                        topic: t,
                    });
                    known.insert((client, t), producer);
                    producer
                }
            };
            part.devices.push(DevicePart { producer, id });
        }
        Ok(())
    }
}

/// Opens all connections, subscribes, and makes producers, in this order: what is published is delivered from the first message on.
pub(crate) fn open(settings: &Settings, place: &Place, executors: usize) -> Result<Plan> {
    let topics = settings.topics as usize;
    let sockets = u64::from(settings.clients.max(1)) * executors as u64
        + u64::from(settings.stalled_connections)
        + match settings.applications {
            0 => {
                u64::from(settings.topics) * u64::from(settings.subscriptions * settings.consumers)
            }
            applications => u64::from(applications) * executors as u64,
        };
    // Each socket of the load is known to us and to glommio.
    measure::raise_open_files(2 * sockets + 128)?;

    let service = Address::resolve(&place.url)?;
    let mut seeker = Connection::open(&service, 4096)?;
    let names = (0..topics).map(|i| format!("{}-{i}", settings.topic_prefix));
    let topics = names
        .map(|topic| Ok((seeker.lookup(&service, &topic)?, topic)))
        .collect::<Result<Vec<_>>>()?;
    let subscriptions: Vec<_> = match settings.subscriptions {
        1 => vec![place.subscription.clone()],
        many => (0..many)
            .map(|s| format!("{}-{s}", place.subscription))
            .collect(),
    };
    let mut opener = Opener {
        settings,
        place,
        parts: (0..executors.clamp(1, topics.len().max(1)))
            .map(|_| Part::default())
            .collect(),
        links: HashMap::new(),
    };
    opener.consumers(&topics, &subscriptions)?;
    opener.producers(&topics)?;
    let mut parts = opener.parts;
    let whole = parts
        .iter()
        .map(|part| part.devices.len() as u64)
        .sum::<u64>()
        .max(1);
    for part in &mut parts {
        let share = part.devices.len() as u64;
        part.share = (share, whole);
        part.window = ((u64::from(settings.window) * share / whole) as usize).max(1);
        part.backlog = (settings.backlog * share).div_ceil(whole);
    }
    let stalled = topics.first().map_or(Ok(Vec::new()), |(address, topic)| {
        (0..settings.stalled_connections)
            .map(|i| {
                stall(address, topic, settings.stalled_bytes as usize)
                    .context(|| format!("stalled connection {i}"))
            })
            .collect()
    })?;
    Ok(Plan {
        producers: parts.iter().map(|part| part.producers.len()).sum(),
        consumers: parts.iter().map(|part| part.consumers.len()).sum(),
        parts,
        topics: topics.into_iter().map(|(_, topic)| topic).collect(),
        subscriptions: subscriptions.into(),
        _stalled: stalled,
    })
}

/// A connection with a producer that has sent the first `bytes` of a SEND frame and will never send the rest.
fn stall(address: &Address, topic: &str, bytes: usize) -> Result<TcpStream> {
    let mut connection = Connection::open(address, STALLED_INPUT)?;
    connection.producer(topic, 0)?;
    let send = BaseCommand {
        r#type: Type::Send as i32,
        send: Some(CommandSend::default()),
        ..BaseCommand::default()
    };
    let mut out = BytesMut::new();
    encode::command_with_rest(&send, bytes + 65_536, &mut out);
    out.resize(bytes.max(out.len()), 0);
    connection.write(&out)?;
    Ok(connection.stream)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pairs(clients: u32, devices_: u32, topics: u32) -> Vec<(u32, u32)> {
        devices(&Settings {
            clients,
            devices: devices_,
            topics,
            ..Settings::default()
        })
    }

    #[test]
    fn devices_reach_every_client_and_every_topic() {
        for (clients, count, topics, distinct) in [
            (10, 10_000, 8, 80),
            (10, 1000, 1, 10),
            (10, 10_000, 2000, 10_000),
            (3, 50, 50, 50),
        ] {
            let pairs = pairs(clients, count, topics);
            assert_eq!(pairs.len(), count as usize);
            let of = |f: fn(&(u32, u32)) -> u32| pairs.iter().map(f).collect::<HashSet<_>>().len();
            assert_eq!(
                (of(|p| p.0), of(|p| p.1)),
                (clients as usize, topics as usize)
            );
            assert_eq!(pairs.iter().collect::<HashSet<_>>().len(), distinct);
        }
    }

    #[test]
    fn without_keys_each_client_and_each_topic_has_a_producer() {
        assert_eq!(pairs(3, 0, 2), [(0, 0), (1, 1), (2, 0)]);
        assert_eq!(pairs(2, 0, 3), [(0, 0), (1, 1), (0, 2)]);
        assert!(pairs(0, 100, 3).is_empty());
    }
}
