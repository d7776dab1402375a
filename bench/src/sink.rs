//! A broker that does nothing: it answers every send with a receipt at once and keeps no message. What can be published to it is the
//! ceiling of the load generator.

use std::io::Write as _;
use std::net::TcpListener;

use bytes::BytesMut;
use vela_codec::hot::SendView;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;
use vela_proto::command_lookup_topic_response::LookupType;
use vela_proto::{
    BaseCommand, CommandConnected, CommandLookupTopicResponse, CommandProducerSuccess,
};

use crate::args::SinkArgs;
use crate::error::{Context as _, Result, fail};
use crate::measure;
use crate::net::Net;
use crate::wire::RawFrame;

/// How long a turn waits for events, in nanoseconds.
const TURN: u64 = 1_000_000_000;

/// Runs until the process is ended.
pub(crate) fn run(args: &SinkArgs) -> Result<()> {
    measure::pin_to(args.cpu.as_ref())?;
    let (listener, url) = bind(args.port)?;
    println!("sink is ready: {url}");
    std::io::stdout()
        .flush()
        .context(|| "cannot write the ready line".into())?;
    serve(listener, &url)
}

/// Listens on 127.0.0.1; answers the URL too.
pub(crate) fn bind(port: u16) -> Result<(TcpListener, String)> {
    let listener = TcpListener::bind(("127.0.0.1", port))
        .context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
    let port = listener
        .local_addr()
        .context(|| "cannot tell the port".into())?
        .port();
    Ok((listener, format!("pulsar://127.0.0.1:{port}")))
}

/// Answers for ever. A connection that sends what is not understood ends the sink.
pub(crate) fn serve(listener: TcpListener, url: &str) -> Result<()> {
    let mut net = Net::new()?;
    net.listen(listener)?;
    let mut entry = 0;
    loop {
        net.poll(TURN, |_, frame, out, _| answer(frame, url, &mut entry, out))?;
        net.flush();
        net.closed.clear();
    }
}

fn answer(frame: RawFrame<'_>, url: &str, entry: &mut u64, out: &mut BytesMut) -> Result<()> {
    if frame.type_is(Type::Send) {
        let send = SendView::parse(frame.command).context(|| "a damaged SEND".into())?;
        *entry += 1;
        encode::send_receipt(
            out,
            send.producer_id,
            send.sequence_id,
            send.highest_sequence_id.unwrap_or(u64::MAX),
            1,
            *entry,
        );
        return Ok(());
    }
    let command = decode_command(frame.command).context(|| "a damaged command".into())?;
    match command.r#type() {
        Type::Connect => encode::command(
            &BaseCommand {
                r#type: Type::Connected as i32,
                connected: Some(CommandConnected {
                    server_version: "vela-bench sink".into(),
                    protocol_version: Some(21),
                    ..CommandConnected::default()
                }),
                ..BaseCommand::default()
            },
            out,
        ),
        Type::Lookup => encode::command(
            &BaseCommand {
                r#type: Type::LookupResponse as i32,
                lookup_topic_response: Some(CommandLookupTopicResponse {
                    broker_service_url: Some(url.into()),
                    response: Some(LookupType::Connect as i32),
                    request_id: command.lookup_topic.unwrap_or_default().request_id,
                    authoritative: Some(true),
                    ..CommandLookupTopicResponse::default()
                }),
                ..BaseCommand::default()
            },
            out,
        ),
        Type::Producer => {
            let producer = command.producer.unwrap_or_default();
            encode::command(
                &BaseCommand {
                    r#type: Type::ProducerSuccess as i32,
                    producer_success: Some(CommandProducerSuccess {
                        request_id: producer.request_id,
                        producer_name: format!("sink-{}", producer.producer_id),
                        ..CommandProducerSuccess::default()
                    }),
                    ..BaseCommand::default()
                },
                out,
            );
        }
        Type::Ping => encode::pong(out),
        Type::Pong => {}
        other => {
            return fail(format!(
                "the sink only takes publishes, not {}",
                other.as_str_name()
            ));
        }
    }
    Ok(())
}
