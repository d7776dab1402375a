//! TLS, in front of a broker that speaks none: a relay in this process ends it. The same relay, without TLS, stands for a network that
//! stalls.

use crate::harness::{run, topic};
use crate::traffic::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use vela_client::{Client, SubscriptionType, TlsOptions};
use vela_proto::BaseCommand;
use vela_proto::prost::Message as _;

/// Carries bytes to a broker and back.
pub struct Relay {
    pub url: String,
    held: watch::Sender<bool>,
}

impl Relay {
    pub async fn start(to: &str) -> Self {
        Self::serve(to, None).await
    }

    async fn serve(to: &str, acceptor: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scheme = if acceptor.is_some() {
            "pulsar+ssl"
        } else {
            "pulsar"
        };
        let url = format!("{scheme}://127.0.0.1:{port}");
        let to = to.trim_start_matches("pulsar://").to_owned();
        let (held, hold) = watch::channel(false);
        let here = url.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (to, acceptor, hold, here) =
                    (to.clone(), acceptor.clone(), hold.clone(), here.clone());
                tokio::spawn(async move {
                    let Ok(broker) = TcpStream::connect(&to).await else {
                        return;
                    };
                    match acceptor {
                        None => carry(client, broker, hold, &here).await,
                        Some(acceptor) => {
                            if let Ok(client) = acceptor.accept(client).await {
                                carry(client, broker, hold, &here).await;
                            }
                        }
                    }
                });
            }
        });
        Self { url, held }
    }

    /// Carries nothing for a while, without closing anything.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }
}

async fn carry<S: AsyncRead + AsyncWrite>(
    client: S,
    broker: TcpStream,
    hold: watch::Receiver<bool>,
    url: &str,
) {
    let (client_in, client_out) = split(client);
    let (broker_in, broker_out) = split(broker);
    tokio::select! {
        () = copy(client_in, broker_out, hold.clone()) => {}
        () = copy_frames(broker_in, client_out, hold, url) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut hold: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if hold.wait_for(|held| !held).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
        if to.flush().await.is_err() {
            return;
        }
    }
}

/// Carries frames, and says in the answers to lookups that every topic is here.
async fn copy_frames(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut hold: watch::Receiver<bool>,
    url: &str,
) {
    loop {
        let Ok(length) = from.read_u32().await else {
            return;
        };
        let mut frame = vec![0; length as usize];
        if from.read_exact(&mut frame).await.is_err() || hold.wait_for(|held| !held).await.is_err()
        {
            return;
        }
        let size = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
        if let Ok(mut command) = BaseCommand::decode(&frame[4..4 + size])
            && let Some(answer) = &mut command.lookup_topic_response
        {
            answer.broker_service_url = Some(url.to_owned());
            answer.broker_service_url_tls = Some(url.to_owned());
            let command = command.encode_to_vec();
            frame = u32::try_from(command.len()).unwrap().to_be_bytes().to_vec();
            frame.extend(command);
        }
        let mut whole = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        whole.extend(frame);
        if to.write_all(&whole).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// A server for 127.0.0.1 and localhost, and the authority that says so.
fn acceptor() -> (TlsAcceptor, String) {
    let authority = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&authority).unwrap().pem();
    let issuer = Issuer::new(params, authority);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
    let config = config
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), root)
}

#[test]
#[ignore = "needs a broker"]
fn messages_go_through_tls_and_strangers_are_refused() {
    run(async |broker| {
        let (acceptor, root) = acceptor();
        let relay = Relay::serve(&broker.url, Some(acceptor)).await;
        let client = Client::builder(&relay.url)
            .tls(TlsOptions::new().trust_certs_pem(root))
            .build()
            .await
            .unwrap();
        let topic = topic("tls");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let producer = client.producer(&topic).build().await.unwrap();
        publish(&producer, &numbers(100)).await;
        assert_eq!(payloads(&take(&mut consumer, 100).await), numbers(100));
        let stranger = Client::builder(&relay.url)
            .operation_timeout(Duration::from_secs(2))
            .build()
            .await;
        if let Ok(stranger) = stranger {
            stranger
                .producer(&topic)
                .build()
                .await
                .map(|_| ())
                .unwrap_err();
        }
    });
}
