//! Rules from an xDS server: taken, refused, and kept while the server is away.

use std::time::Duration;

use prost_types::Any;
use quotagate_ratelimit::serve::RuleSource;
use quotagate_ratelimit::xds::XdsOptions;
use quotagate_store::tls::TlsFiles;
use quotagate_support::tls::{Authority, Holder};
use quotagate_support::xds::{TYPE, XdsServer};

use crate::bench::passes;
use crate::running::{LogLines, Start, entry, named, options, rules, until};

fn follows(options: XdsOptions) -> Start {
    Start::new(RuleSource::Xds(Box::new(options)))
}

#[tokio::test]
async fn rules_are_taken_and_wrong_ones_are_refused_with_all_faults() {
    let server = XdsServer::start(0, None).unwrap();
    let service = Start::with_server(&server).run().await;
    let mut client = service.connect().await;
    until("the stream", async || server.streams() == 1).await;
    assert_eq!(client.limit().await, None, "there are no rules yet");
    assert!(!service.health().await.0);

    server.send("1", &[rules(5)]);
    until("the acknowledgement", async || server.is_used("1")).await;
    assert_eq!(client.limit().await, Some(5));
    assert_eq!(service.health().await, (true, "OK".to_owned()));

    let twice = vec![entry("k", 6, 1), entry("k", 9, 1)];
    server.send("2", &[named("good", "other", Vec::new()), named("bad", "d", twice)]);
    until("the refusal", async || server.refusal().is_some()).await;
    assert_eq!(
        server.refusal().unwrap(),
        "bad: descriptors[1]: the key \"k\" without a value occurs twice at this level: merge the two, or remove one\n\
         bad: descriptors[1].rate_limit.unit: 9 is no unit: use a number from 1 (SECOND) to 7 (WEEK)"
    );
    let refusal = server.requests().pop().unwrap();
    assert_eq!((&*refusal.version_info, &*refusal.response_nonce), ("1", "2"));
    assert_eq!(client.limit().await, Some(5), "the rules before stay in force");
    assert!(service.health().await.0);

    server.send("3", &[rules(7)]);
    until("the acknowledgement", async || server.is_used("3")).await;
    assert_eq!(client.limit().await, Some(7));
    server.send("4", &[]);
    until("the acknowledgement", async || server.is_used("4")).await;
    assert_eq!(client.limit().await, None);
    assert!(passes(&client.ask("k=v").await.unwrap().unwrap()), "without rules all pass");
}

#[tokio::test]
async fn the_client_says_who_it_is() {
    let server = XdsServer::start(0, None).unwrap();
    let mut options = options(server.port());
    options.headers.insert("x-token", "letmein".parse().unwrap());
    let _service = follows(options).run().await;
    until("the request", async || !server.requests().is_empty()).await;
    let request = server.requests().remove(0);
    let node = request.node.unwrap();
    let zone = node.metadata.unwrap().fields.remove("zone").unwrap();
    assert_eq!((&*node.id, &*request.type_url), ("test-node", TYPE));
    assert_eq!(zone.kind, Some(prost_types::value::Kind::StringValue("a".to_owned())));
    assert_eq!((&*request.version_info, &*request.response_nonce), ("", ""));
    assert_eq!(server.header("x-token").as_deref(), Some("letmein"));
}

#[tokio::test]
async fn rules_and_counters_stay_while_the_server_is_away() {
    let server = XdsServer::start(0, None).unwrap();
    let port = server.port();
    server.send("1", &[rules(2)]);
    let service = Start::with_server(&server).run().await;
    let mut client = service.connect().await;
    until("the acknowledgement", async || server.is_used("1")).await;
    let mut passed = async || passes(&client.ask("k=v").await.unwrap().unwrap());
    assert!(passed().await);
    // In the middle of a stream, again and again. Each stream begins without a version.
    let begins = |request: &quotagate_support::xds::DiscoveryRequest| {
        request.version_info.is_empty() && request.response_nonce.is_empty()
    };
    for streams in 2..5 {
        server.cut();
        until("another stream", async || {
            server.requests().iter().filter(|request| begins(request)).count() == streams
        })
        .await;
    }
    drop(server);
    assert!(passed().await);
    assert!(!passed().await, "the counter is the same one");
    assert!(service.health().await.0);
    let server = XdsServer::start(port, None).unwrap();
    server.send("1", &[rules(9)]);
    until("the rules of the new server", async || client.limit().await == Some(9)).await;
}

#[tokio::test]
async fn large_rules_are_refused_by_their_size_and_the_log_says_how_to_take_them() {
    let log = LogLines::record();
    let server = XdsServer::start(0, None).unwrap();
    server.send("1", &[rules(2)]);
    let service = Start::with_server(&server).run().await;
    let mut client = service.connect().await;
    until("the acknowledgement", async || server.is_used("1")).await;
    let large = Any { type_url: TYPE.to_owned(), value: vec![0; 2 << 20] };
    server.send_any("2", vec![large]);
    let remedy =
        "set XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES to more than 1048576; the rules in force stay";
    until("the log", async || log.count(remedy) > 0).await;
    let streams = server.streams();
    until("another stream", async || server.streams() > streams + 1).await;
    assert_eq!(client.limit().await, Some(2));
    assert_eq!(log.count(remedy), 1, "once, although each stream ends so");
    server.send("3", &[rules(3)]);
    until("the acknowledgement", async || server.is_used("3")).await;
}

#[tokio::test]
async fn same_fault_is_said_again_after_rules_have_come() {
    let log = LogLines::record();
    let server = XdsServer::start(0, None).unwrap();
    server.send("1", &[rules(2)]);
    let _service = Start::with_server(&server).run().await;
    let acknowledged = |streams| {
        let requests = server.requests();
        requests.iter().filter(|request| request.version_info == "1").count() == streams
    };
    for streams in 1..4 {
        until("the acknowledgement", async || acknowledged(streams)).await;
        assert_eq!(log.count("the rules in force stay"), streams - 1);
        server.cut();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_loses_its_answer_while_rules_change() {
    const CLIENTS: usize = 8;
    const CHANGES: u32 = 60;
    let server = XdsServer::start(0, None).unwrap();
    server.send("0", &[rules(1_000_000)]);
    let service = Start::with_server(&server).run().await;
    until("the acknowledgement", async || server.is_used("0")).await;
    let (stop, stopped) = tokio::sync::watch::channel(());
    let mut asking = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = service.connect().await;
        let stopped = stopped.clone();
        asking.push(tokio::spawn(async move {
            let mut answered = 0_u64;
            while stopped.has_changed().is_ok_and(|has_changed| !has_changed) {
                let answer = client.ask("k=v").await.unwrap().unwrap();
                assert!(passes(&answer));
                assert!(answer.statuses[0].current_limit.is_some());
                answered += 1;
            }
            answered
        }));
    }
    let refusals =
        || server.requests().iter().filter(|request| request.error_detail.is_some()).count();
    for change in 1..=CHANGES {
        let before = refusals();
        let version = change.to_string();
        if change % 3 == 0 {
            server.send(&version, &[rules(1_000_000 + change), named("bad", "d", Vec::new())]);
            until("the refusal", async || refusals() > before).await;
        } else {
            server.send(&version, &[rules(1_000_000 + change)]);
            until("the acknowledgement", async || server.is_used(&version)).await;
        }
        if change % 10 == 0 {
            server.cut();
        }
    }
    stop.send(()).unwrap();
    for client in asking {
        assert!(client.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn both_sides_show_certificates_and_renewed_ones_are_used_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let [first, second] = ["first", "second"].map(|name| Authority::new(path, name).unwrap());
    let (certificate, key, trusted) = (path.join("c.pem"), path.join("c.key"), path.join("ca.pem"));
    let renew = |authority: &Authority| {
        let own = authority.issue(&Holder::names(&["service"])).unwrap();
        own.write(&certificate, &key).unwrap();
        std::fs::copy(authority.file(), &trusted).unwrap();
    };
    let tls = |authority: &Authority, names: &[&str]| {
        authority.server(&authority.issue(&Holder::names(names)).unwrap()).unwrap()
    };
    renew(&first);
    let server = XdsServer::start(0, Some(tls(&first, &["localhost"]))).unwrap();
    let port = server.port();
    server.send("1", &[rules(1)]);
    let files = TlsFiles {
        own: Some((certificate.clone(), key.clone())),
        authority: Some(trusted.clone()),
        peer: None,
    };
    let service = follows(XdsOptions { tls: Some(files.clone()), ..options(port) }).run().await;
    let mut client = service.connect().await;
    until("the first rules", async || client.limit().await == Some(1)).await;
    drop(server);

    // Another authority on both sides. Until the files are renewed, neither side trusts the other.
    let server = XdsServer::start(port, Some(tls(&second, &["localhost"]))).unwrap();
    server.send("2", &[rules(2)]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((server.streams(), client.limit().await), (0, Some(1)));
    renew(&second);
    until("the second rules", async || client.limit().await == Some(2)).await;
    drop(server);

    // A name that the service does not connect to, until it is told to expect that.
    let server = XdsServer::start(port, Some(tls(&second, &["xds.example"]))).unwrap();
    server.send("3", &[rules(3)]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((server.streams(), client.limit().await), (0, Some(2)));
    let files = TlsFiles { peer: Some("xds.example".to_owned()), ..files };
    let service = follows(XdsOptions { tls: Some(files), ..options(port) }).run().await;
    let mut client = service.connect().await;
    until("the third rules", async || client.limit().await == Some(3)).await;
}
