//! Plays the client's side of a recording to the broker and compares what the broker says.
//!
//! Lines are taken in the order of the file, so a frame is sent once everything recorded in front of it has arrived. Answers are compared per
//! connection and per producer or consumer on it: what two of them are told at the same time may cross. For one consumer, only deliveries may
//! cross answers to what it asked meanwhile (a read of the log runs beside them in either broker).

use std::collections::{BTreeMap, BTreeSet};

use vela_broker::engine::name::TopicName;
use vela_broker::engine::{CoreId, Metadata, ServiceAddress};
use vela_broker::store::log::Position;
use vela_broker::store::memory::Kept;
use vela_codec::proto::base_command::Type;
use vela_codec::proto::command_subscribe::SubType;
use vela_codec::proto::{
    BaseCommand, CommandConnect, CommandProducer, CommandSend, MessageMetadata,
};

use super::compare::{Names, set_fields};
use super::harness::client::Client;
use super::harness::{Peer, Step, World, WorldConfig};
use super::party::{Class, Party, named, request_id};
use super::recording::{self, Content, Line, Side, What, Wire, position};

/// What a recording needs that is not in it.
#[derive(Clone, Default)]
pub struct Needs {
    /// Partitioned topics and their partitions.
    pub partitioned: &'static [(&'static str, u32)],
    /// Topics that a client not recorded has published one message each to.
    pub topics: &'static [&'static str],
    /// Messages from that client are there before the recording begins, not only when they are awaited.
    pub published_before: bool,
    /// The recording's PINGs are the keep-alive and must come; elsewhere they are the one that the deliberate differences name.
    pub keep_alive: bool,
    /// Messages of the recording that its durable subscriptions have not acknowledged at its end.
    pub left: usize,
}

/// How the broker is run.
#[derive(Copy, Clone, Debug)]
pub struct Setting {
    /// The core that takes each connection of the recording; the last one takes the client that is not recorded.
    pub cores: [CoreId; 3],
    /// Bytes of a connection that are read or written at once.
    pub bytes: usize,
    /// Of what could happen next, the last thing in the harness's list happens first: disks and mail before sockets.
    pub last_first: bool,
    /// The broker has an address to give to clients, and does not leave them at the one they know.
    pub advertised: bool,
}

/// One frame of the broker that is not compared yet.
struct Arrival {
    at: u64,
    wire: Wire,
}

struct Conn {
    peer: Peer,
    open: bool,
    arrived: BTreeMap<Party, Vec<Arrival>>,
    /// What was compared already, per party: class and when it came.
    compared: BTreeMap<Party, Vec<(Class, u64)>>,
    /// Whose request it was.
    requests: BTreeMap<u64, Party>,
    /// Topics of consumers.
    topics: BTreeMap<u64, String>,
}

/// The client that was not recorded.
struct Elsewhere {
    peer: Peer,
    /// Producers by topic: id, name, last sequence id.
    producers: BTreeMap<String, (u64, String, u64)>,
    requests: u64,
}

pub struct Replay {
    world: World,
    /// Milliseconds since the first frame.
    elapsed: u64,
    setting: Setting,
    needs: Needs,
    names: Names,
    conns: BTreeMap<usize, Conn>,
    elsewhere: Option<Elsewhere>,
    arrivals: u64,
    /// Entries of messages that the recorded client or the other one has published.
    published: BTreeSet<Position>,
}

/// Plays a recording. Answers the deliberate differences met.
pub fn replay(name: &str, needs: &Needs, setting: Setting) -> BTreeSet<&'static str> {
    let lines = recording::read(name);
    let mut replay = Replay {
        world: World::new(WorldConfig {
            cores: setting.cores.iter().max().map_or(1, |core| core + 1),
            namespaces: vec!["public/default".into(), "public/cap".into()],
            service: ServiceAddress {
                advertised: setting.advertised.then(|| "broker.example".into()),
                port: 6650,
                core_ports: Vec::new(),
            },
            ..WorldConfig::default()
        }),
        elapsed: 0,
        setting,
        needs: needs.clone(),
        names: Names::default(),
        conns: BTreeMap::new(),
        elsewhere: None,
        arrivals: 0,
        published: BTreeSet::new(),
    };
    replay.prepare(&lines);
    for (index, line) in lines.iter().enumerate() {
        let place = Place {
            name,
            line,
            setting,
        };
        match (line.from, &line.what) {
            (Side::Client, What::Close) => replay.close(line.conn),
            (Side::Broker, What::Close) => {}
            (Side::Client, What::Frame(wire, ms)) => {
                replay.advance_to(*ms);
                replay.send(line.conn, wire);
            }
            (Side::Broker, What::Frame(wire, ms)) => {
                replay.advance_to(*ms);
                if wire.kind() == Type::Message && !needs.published_before {
                    replay.publish_awaited(lines.get(index..).unwrap_or_default());
                }
                replay.expect(line.conn, wire);
            }
        }
        drop(place);
    }
    replay.finish();
    replay.check_what_is_left(&lines);
    replay.names.met
}

/// Says where a replay stood when an assertion failed.
struct Place<'a> {
    name: &'a str,
    line: &'a Line,
    setting: Setting,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "while replaying {}.jsonl, line {}: {:?} on connection {}, {:?}",
                self.name, self.line.number, self.line.from, self.line.conn, self.setting
            );
        }
    }
}

impl Conn {
    /// Whom an answer is for: who it names, else whose request it answers.
    fn party(&self, command: &BaseCommand) -> Party {
        named(command)
            .or_else(|| self.requests.get(&request_id(command)?).copied())
            .unwrap_or(Party::Connection)
    }
}

impl Replay {
    fn core(&self, conn: usize) -> CoreId {
        let [.., last] = self.setting.cores;
        self.setting.cores.get(conn).copied().unwrap_or(last)
    }

    /// Does whatever there is to do, in the way of the setting.
    fn run(&mut self) {
        loop {
            let mut steps = self.world.steps();
            steps.retain(|step| !matches!(step, Step::WriteYounger(_)));
            let next = if self.setting.last_first {
                steps.last()
            } else {
                steps.first()
            };
            match next {
                Some(step) => self.world.apply(*step, self.setting.bytes),
                None => return,
            }
        }
    }

    /// Time passes until the line's.
    fn advance_to(&mut self, ms: u64) {
        if ms > self.elapsed {
            self.collect();
            self.world.advance(ms - self.elapsed);
            self.elapsed = ms;
        }
    }

    fn prepare(&mut self, lines: &[Line]) {
        for (topic, partitions) in self.needs.partitioned {
            let name = TopicName::parse(topic).expect("a topic name");
            let (key, value) = Metadata::partitioned_entry(&name, *partitions);
            self.world.put_metadata(&key, &value);
        }
        for topic in self.needs.topics {
            let content = Content {
                metadata: MessageMetadata {
                    publish_time: 1,
                    ..Default::default()
                },
                payload: b"the first".to_vec(),
            };
            self.publish(topic, &content);
        }
        if self.needs.published_before {
            self.publish_awaited(lines);
        }
    }

    /// Publishes, in order, the messages that `lines` deliver from one topic and that nobody has published before.
    fn publish_awaited(&mut self, lines: &[Line]) {
        let mut topics: BTreeMap<(usize, u64), String> = BTreeMap::new();
        for (conn, state) in &self.conns {
            for (consumer, topic) in &state.topics {
                topics.insert((*conn, *consumer), topic.clone());
            }
        }
        let mut published_here = BTreeSet::new();
        let mut awaited: BTreeMap<Position, (String, Content)> = BTreeMap::new();
        for line in lines {
            let What::Frame(wire, _) = &line.what else {
                continue;
            };
            if let Some(subscribe) = &wire.command.subscribe {
                topics.insert((line.conn, subscribe.consumer_id), subscribe.topic.clone());
            }
            if let Some(receipt) = &wire.command.send_receipt {
                published_here.extend(receipt.message_id.as_ref().map(position));
            }
            if let (Some(message), Some(content)) = (&wire.command.message, &wire.content) {
                let at = position(&message.message_id);
                if !self.published.contains(&at) && !published_here.contains(&at) {
                    let topic = &topics[&(line.conn, message.consumer_id)];
                    awaited.insert(at, (topic.clone(), content.clone()));
                }
            }
        }
        for (recorded, (topic, content)) in awaited {
            let (ours, name) = self.publish(&topic, &content);
            self.names.position(recorded, ours);
            self.names.producer(&content.metadata.producer_name, &name);
            self.published.insert(recorded);
        }
    }

    /// Publishes as a client that is not recorded. Answers where the message went, and the producer's name.
    fn publish(&mut self, topic: &str, content: &Content) -> (Position, String) {
        let core = self.core(usize::MAX);
        let world = &mut self.world;
        let elsewhere = self.elsewhere.get_or_insert_with(|| {
            let connect = BaseCommand {
                connect: Some(CommandConnect {
                    client_version: "unrecorded".into(),
                    protocol_version: Some(20),
                    ..Default::default()
                }),
                ..command(Type::Connect)
            };
            let peer = world.open(core);
            world.feed(peer, &recording::frame(&connect, None));
            Elsewhere {
                peer,
                producers: BTreeMap::new(),
                requests: 0,
            }
        });
        let known = elsewhere.producers.len() as u64;
        let (id, name, sequence) = match elsewhere.producers.get(topic) {
            Some((id, name, last)) => (*id, name.clone(), last + 1),
            None => {
                elsewhere.requests += 1;
                let open = BaseCommand {
                    producer: Some(CommandProducer {
                        topic: topic.to_owned(),
                        producer_id: known,
                        request_id: elsewhere.requests,
                        ..Default::default()
                    }),
                    ..command(Type::Producer)
                };
                world.feed(elsewhere.peer, &recording::frame(&open, None));
                let answer = wait_for(world, elsewhere.peer, Type::ProducerSuccess);
                let success = answer.command.producer_success.expect("PRODUCER_SUCCESS");
                (known, success.producer_name, 0)
            }
        };
        elsewhere
            .producers
            .insert(topic.to_owned(), (id, name.clone(), sequence));
        let send = BaseCommand {
            send: Some(CommandSend {
                producer_id: id,
                sequence_id: sequence,
                num_messages: content.metadata.num_messages_in_batch,
                ..Default::default()
            }),
            ..command(Type::Send)
        };
        let mut content = content.clone();
        content.metadata.producer_name.clone_from(&name);
        world.feed(elsewhere.peer, &recording::frame(&send, Some(&content)));
        let answer = wait_for(world, elsewhere.peer, Type::SendReceipt);
        let receipt = answer.command.send_receipt.expect("SEND_RECEIPT");
        (position(&receipt.message_id.expect("a message id")), name)
    }

    /// Sends a recorded frame, with the ids and names that this broker gave.
    fn send(&mut self, conn: usize, wire: &Wire) {
        if !self.conns.contains_key(&conn) {
            let core = self.core(conn);
            let state = Conn {
                peer: self.world.open(core),
                open: true,
                arrived: BTreeMap::new(),
                compared: BTreeMap::new(),
                requests: BTreeMap::new(),
                topics: BTreeMap::new(),
            };
            self.conns.insert(conn, state);
        }
        let state = self.conns.get_mut(&conn).expect("just opened");
        assert!(state.open, "a frame behind the end of its connection");
        let (mut command, mut content) = (wire.command.clone(), wire.content.clone());
        assert_eq!(
            recording::frame(&command, content.as_ref()),
            wire.frame,
            "taken apart and put together again, the frame is another one"
        );
        // What a command brings about must not be there before it. An ACK and a question bring no deliveries about.
        if let Some(party) = named(&command)
            && command.ack.is_none()
            && command.get_last_message_id.is_none()
            && let Some(early) = state.arrived.get(&party).and_then(|queue| queue.first())
        {
            panic!("came before its time: {}", set_fields(&early.wire.command));
        }
        if let (Some(party), Some(request)) = (named(&command), request_id(&command)) {
            state.requests.insert(request, party);
        }
        if let Some(subscribe) = &command.subscribe {
            state
                .topics
                .insert(subscribe.consumer_id, subscribe.topic.clone());
        }
        if let Some(name) = command
            .producer
            .as_ref()
            .and_then(|p| p.producer_name.as_ref())
        {
            self.names.producer(name, name);
        }
        if let Some(connect) = &mut command.connect
            && self.setting.advertised
        {
            // Nobody told the client to go through a proxy.
            connect.proxy_to_broker_url = None;
        }
        let ids = command.ack.iter_mut().flat_map(|c| &mut c.message_id);
        let ids = ids.chain(command.seek.iter_mut().flat_map(|c| &mut c.message_id));
        let redeliver = &mut command.redeliver_unacknowledged_messages;
        for id in ids.chain(redeliver.iter_mut().flat_map(|c| &mut c.message_ids)) {
            self.names.translate(id);
        }
        if let Some(content) = &mut content {
            self.names
                .translate_name(&mut content.metadata.producer_name);
        }
        let peer = state.peer;
        self.world
            .feed(peer, &recording::frame(&command, content.as_ref()));
        self.collect();
    }

    fn close(&mut self, conn: usize) {
        let Some(state) = self.conns.get_mut(&conn) else {
            return;
        };
        assert!(
            self.world.is_open(state.peer),
            "the broker closed the connection before the client did"
        );
        state.open = false;
        self.world.cut(state.peer);
        self.collect();
    }

    /// Takes over what the broker has sent.
    fn collect(&mut self) {
        self.run();
        for state in self.conns.values_mut() {
            for incoming in self.world.take(state.peer) {
                let wire = Wire::of(incoming.command, &incoming.rest);
                self.arrivals += 1;
                let party = state.party(&wire.command);
                let arrival = Arrival {
                    at: self.arrivals,
                    wire,
                };
                state.arrived.entry(party).or_default().push(arrival);
            }
        }
    }

    /// The broker must have said, or say soon, what it said in the recording.
    fn expect(&mut self, conn: usize, recorded: &Wire) {
        let class = Class::of(recorded.kind());
        if class == Class::KeepAlive && !self.needs.keep_alive {
            return self.names.not_said(recorded);
        }
        let mut waited = 0;
        loop {
            self.collect();
            let state = self.conns.get_mut(&conn).expect("a connection of the file");
            let party = state.party(&recorded.command);
            let queue = state.arrived.entry(party).or_default();
            let found = queue.iter().position(|a| Class::of(a.wire.kind()) == class);
            if let Some(at) = found {
                let arrival = queue.remove(at);
                let before = state.compared.entry(party).or_default();
                let crossed = before
                    .iter()
                    .find(|(c, at)| *at > arrival.at && !c.may_cross(class));
                assert!(
                    crossed.is_none(),
                    "{} came before what was recorded in front of it",
                    set_fields(&arrival.wire.command)
                );
                before.push((class, arrival.at));
                self.names.compare(recorded, &arrival.wire);
                if let Some(receipt) = &recorded.command.send_receipt {
                    self.published
                        .extend(receipt.message_id.as_ref().map(position));
                }
                return;
            }
            // Timers of the two brokers are alike, not the same to the millisecond.
            assert!(
                waited < PATIENCE_MS,
                "nothing came where this was recorded: {}",
                set_fields(&recorded.command)
            );
            waited += 1;
            self.world.advance(1);
            self.elapsed += 1;
        }
    }

    /// The broker has said nothing that was not recorded.
    fn finish(&mut self) {
        self.world.advance(PATIENCE_MS);
        self.collect();
        for (conn, state) in &self.conns {
            assert!(!state.open, "connection {conn} at the end");
            let left: Vec<String> = state
                .arrived
                .values()
                .flatten()
                .map(|a| set_fields(&a.wire.command))
                .collect();
            assert!(
                left.is_empty(),
                "on connection {conn} the broker said more than was recorded: {left:#?}"
            );
        }
    }
}

impl Replay {
    /// The machine dies; what the recording left unacknowledged is there after the start, and nothing else.
    fn check_what_is_left(&mut self, lines: &[Line]) {
        let mut subscriptions = BTreeMap::new();
        for line in lines {
            if let What::Frame(wire, _) = &line.what
                && let Some(subscribe) = &wire.command.subscribe
                && subscribe.durable()
            {
                let shared = subscribe.sub_type() == SubType::Shared;
                subscriptions.insert(
                    (subscribe.topic.clone(), subscribe.subscription.clone()),
                    shared,
                );
            }
        }
        self.run();
        self.world.crash(|_, _| Kept::Nothing);
        let core = self.core(usize::MAX);
        let mut client = Client::connect(&mut self.world, core);
        let mut left = 0;
        for (id, ((topic, name), shared)) in (0..).zip(subscriptions) {
            client.subscribe(&mut self.world, &topic, &name, shared, id);
            client.flow(&mut self.world, id, 1000);
            left += client.messages(&mut self.world).len();
        }
        assert_eq!(left, self.needs.left, "messages left unacknowledged");
    }
}

/// How much later than recorded an answer may come, milliseconds of the broker's clock.
const PATIENCE_MS: u64 = 100;

fn command(kind: Type) -> BaseCommand {
    BaseCommand {
        r#type: kind as i32,
        ..Default::default()
    }
}

/// Waits for an answer on a connection of our own.
fn wait_for(world: &mut World, peer: Peer, kind: Type) -> Wire {
    world.run_until_idle();
    let mut answers = world.take(peer);
    let last = answers.pop().expect("an answer");
    let wire = Wire::of(last.command, &last.rest);
    assert_eq!(wire.kind(), kind, "{:?}", wire.command);
    assert!(
        answers.iter().all(|a| a.command.connected.is_some()),
        "answers that nobody waits for: {answers:?}"
    );
    wire
}
