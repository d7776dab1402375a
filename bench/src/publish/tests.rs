//! Whole runs against the sink, and against one that answers wrongly.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use bytes::BytesMut;
use clap::Parser as _;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;
use vela_proto::{
    CommandConnected, CommandLookupTopicResponse, CommandProducerSuccess, CommandSend,
};

use super::*;
use crate::args::{Cli, Command};
use crate::sink;
use crate::verify::Kind;
use crate::wire::Input;
use vela_proto::BaseCommand;

fn arguments(url: &str, more: &[&str]) -> PublishArgs {
    let mut words = vec![
        "vela-bench",
        "publish",
        "--url",
        url,
        "--warmup",
        "0.1",
        "--duration",
        "0.4",
    ];
    if !more.contains(&"--patience") {
        // A machine that pauses loses nothing.
        words.extend(["--patience", "60"]);
    }
    words.extend(more);
    match Cli::try_parse_from(words).unwrap().command {
        Command::Publish(args) => args,
        _ => panic!("not a publish"),
    }
}

/// The thread ends with the test program.
fn start_sink() -> String {
    let (listener, url) = sink::bind(0).unwrap();
    let own = url.clone();
    thread::spawn(move || sink::serve(listener, &own));
    url
}

#[test]
fn every_send_to_the_sink_is_settled() {
    let url = start_sink();
    for more in [
        &["--connections", "3", "--topics", "2"][..],
        &["--connections", "2", "--topics", "5", "--window", "7"],
        &["--batch", "10", "--size", "1000"],
        &["--size", "100000", "--window", "50"],
        &["--window", "1"],
    ] {
        // Not every run gets far in its short time on a machine that pauses; each is valid.
        let some = (0..20).any(|_| {
            let report = measured(&arguments(&url, more)).unwrap();
            assert_eq!(report.fault, None, "{more:?}");
            assert!(report.valid, "{report:?}");
            report.work.messages > 100 && report.receipt_us.messages > 0
        });
        assert!(some, "no run with {more:?} sent more than 100 messages");
    }
}

#[test]
fn a_rate_is_kept() {
    let url = start_sink();
    for more in [
        &["--rate", "5000"][..],
        &["--rate", "5000", "--batch", "50"],
    ] {
        let report = measured(&arguments(&url, more)).unwrap();
        assert!(report.valid, "{report:?}");
        // Those due in the window, however busy the machine is.
        assert!(
            report.receipt_us.messages.abs_diff(2000) <= 50,
            "{report:?}"
        );
    }
}

/// What to do wrong with the 100th send.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    SkipReceipt,
    RepeatReceipt,
    SendError,
    Close,
    Silence,
}

fn start_wrong(wrong: Wrong) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("pulsar://{}", listener.local_addr().unwrap());
    let own = url.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let own = own.clone();
            thread::spawn(move || answer_wrongly(stream.unwrap(), &own, wrong));
        }
    });
    url
}

fn answer_wrongly(mut stream: TcpStream, url: &str, wrong: Wrong) {
    let (mut input, mut sends) = (Input::new(65_536), 0);
    loop {
        let n = stream.read(input.space()).unwrap();
        if n == 0 {
            return;
        }
        input.filled(n);
        let mut out = BytesMut::new();
        while let Some(frame) = input.next().unwrap() {
            let command = decode_command(frame.command).unwrap();
            if let Some(CommandSend {
                producer_id,
                sequence_id,
                ..
            }) = command.send
            {
                sends += 1;
                match wrong {
                    _ if sends < 100 => {}
                    Wrong::SkipReceipt if sends == 100 => continue,
                    Wrong::RepeatReceipt if sends == 100 => {
                        encode::send_receipt(&mut out, producer_id, sequence_id, 0, 1, sends);
                    }
                    Wrong::SkipReceipt | Wrong::RepeatReceipt => {}
                    Wrong::Silence => continue,
                    Wrong::Close => return,
                    Wrong::SendError => {
                        let error = vela_proto::ServerError::PersistenceError;
                        encode::send_error(&mut out, producer_id, sequence_id, error, "disk full");
                        continue;
                    }
                }
                encode::send_receipt(&mut out, producer_id, sequence_id, 0, 1, sends);
                continue;
            }
            let mut reply = BaseCommand::default();
            if command.connect.is_some() {
                reply.r#type = Type::Connected as i32;
                reply.connected = Some(CommandConnected::default());
            } else if let Some(lookup) = command.lookup_topic {
                reply.r#type = Type::LookupResponse as i32;
                reply.lookup_topic_response = Some(CommandLookupTopicResponse {
                    broker_service_url: Some(url.into()),
                    response: Some(1),
                    request_id: lookup.request_id,
                    ..CommandLookupTopicResponse::default()
                });
            } else if let Some(producer) = command.producer {
                reply.r#type = Type::ProducerSuccess as i32;
                reply.producer_success = Some(CommandProducerSuccess {
                    request_id: producer.request_id,
                    producer_name: "p".into(),
                    ..CommandProducerSuccess::default()
                });
            }
            encode::command(&reply, &mut out);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

#[test]
fn a_wrong_answer_makes_the_run_invalid() {
    for (wrong, reason) in [
        (Wrong::SkipReceipt, "their receipts are missing"),
        (Wrong::RepeatReceipt, "was the oldest outstanding"),
        (Wrong::SendError, "disk full"),
        (Wrong::Close, "ended"),
        (Wrong::Silence, "their receipts are missing"),
    ] {
        let patience = if wrong == Wrong::Silence { "0.5" } else { "60" };
        let more = [
            "--connections",
            "1",
            "--topics",
            "1",
            "--patience",
            patience,
        ];
        // On a machine that pauses a run may end before its hundredth send.
        let run = || {
            let url = start_wrong(wrong);
            let report = measured(&arguments(&url, &more)).unwrap();
            assert_eq!(report.valid, report.fault.is_none());
            report.fault
        };
        let fault = (0..20).find_map(|_| run()).unwrap();
        assert!(fault.contains(reason), "{fault}");
    }
}

#[test]
fn a_missing_receipt_is_named_by_topic_device_and_sequence() {
    let more = ["--connections", "1", "--topics", "1"];
    let offence = (0..20).find_map(|_| {
        let url = start_wrong(Wrong::SkipReceipt);
        let report = measured(&arguments(&url, &more)).unwrap();
        report.verification.offences.into_iter().next()
    });
    let offence = offence.unwrap();
    assert_eq!(offence.kind, Kind::Unanswered);
    assert!(offence.topic.ends_with("vela-bench-0"), "{offence:?}");
    assert_eq!((offence.device, offence.sequence), (Some(0), Some(99)));
}
