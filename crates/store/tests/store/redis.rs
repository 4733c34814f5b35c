//! Behaviour that needs a real Redis: keys and their time to live, runtime overrides, lost scripts
//! and lost servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_store::control::KeptCounters;

use crate::common::{back, batch, numbers, one, open, take, try_one, until};
use quotagate_protocol::{MAX_UNITS, Reservation};
use quotagate_store::store::{Batch, Store, StoreError};
use quotagate_support::redis::Redis;
use quotagate_support::sentinel::Sentinel;
use quotagate_support::{ports, resp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn text(redis: &Redis, command: &[&str]) -> String {
    redis.cli(command).unwrap().lines().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn counter_expires_ten_seconds_after_its_window() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let ask = Reservation { window_s: 3600, offset_s: 60, ..take("ttl", 9, 2) };
    let grant = one(&*store, &ask).await;
    let key = format!("qg:test:p:{{ttl}}:{}", grant.window);
    assert_eq!(text(&redis, &["KEYS", "*"]), key, "exactly one key");
    assert_eq!(text(&redis, &["GET", &key]), "2");
    let ends_well = |what: &str| {
        let ttl: u64 = text(&redis, &["PTTL", &key]).parse().unwrap();
        let wanted = grant.reset_ms + 10_000;
        assert!(ttl <= wanted && ttl + 5_000 > wanted, "{what}: {ttl} of {wanted}");
    };
    ends_well("created");
    store.refund(&[back(&ask, grant, 1)]).await;
    ends_well("after a return");
    text(&redis, &["PERSIST", &key]);
    one(&*store, &ask).await;
    ends_well("mended");
    one(&*store, &Reservation { quota: 0, ..ask }).await;
    text(&redis, &["PERSIST", &key]);
    assert_eq!(
        one(&*store, &Reservation { window_s: 3600, offset_s: 60, ..take("ttl", 0, 1) })
            .await
            .granted,
        0
    );
    ends_well("mended by a refusal");
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_of_a_store_take_turns_on_a_server() {
    const SEARCHES: u32 = 20;
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let fill = "for i = 1, 50000 do redis.call('SET', 'x' .. i, 1) end";
    text(&redis, &["EVAL", fill, "0"]);
    let control = store.control();
    let began = Instant::now();
    let kept = KeptCounters::LeftOut;
    let searches = (0..SEARCHES).map(|_| control.find("test", "only", kept, 9));
    for found in join_all(searches).await {
        assert_eq!(found.unwrap().keys, Vec::<String>::new());
    }
    // Each has some 65 steps of 1,000 keys, and the shortest pause follows each. A search that runs
    // out of its two seconds has taken longer, too.
    let least = Duration::from_micros(500) * 40 * SEARCHES;
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_overrides_replace_the_quota() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let ask = take("vip", 5, 4);
    for (value, expected) in [
        ("7", (4, 4, 7)),
        ("blocked", (0, 4, 0)),
        ("unlimited", (4, 8, MAX_UNITS)),
        ("nonsense", (0, 8, 5)),
    ] {
        text(&redis, &["SET", "qg:test:p:{vip}:override", value]);
        let grant = one(&*store, &ask).await;
        assert_eq!((grant.granted, grant.used, grant.quota), expected, "{value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_script_is_loaded_again() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    for used in 1..5 {
        text(&redis, &["SCRIPT", "FLUSH"]);
        assert_eq!(numbers(&*store, &take("flush", 9, 1)).await, (1, used));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counter_that_is_not_a_number_fails_alone() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let grant = one(&*store, &take("sound", 9, 1)).await;
    for spoiled in [&["SET", "text"][..], &["SET", "1.5"], &["RPUSH", "1"]] {
        let key = format!("qg:test:p:{{broken}}:{}", grant.window);
        text(&redis, &["DEL", &key]);
        text(&redis, &[spoiled[0], &key, spoiled[1]]);
        let asks = vec![take("sound", 99, 1), take("broken", 99, 1), take("sound", 99, 1)];
        let refunds = vec![back(&take("broken", 99, 1), grant, 1)];
        let reserved = store.reserve(&batch(refunds, asks)).await;
        assert!(matches!(&reserved[1], Err(StoreError::Refused(_))), "{spoiled:?}: {reserved:?}");
        assert_eq!(
            (reserved[0].as_ref().unwrap().granted, reserved[2].as_ref().unwrap().granted),
            (1, 1)
        );
    }
    assert_eq!(
        numbers(&*store, &take("sound", 99, 1)).await,
        (1, 8),
        "the other items are counted once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_behind_a_shared_address_get_one_counter_at_a_time() {
    // A cluster of one node, used as a single server: it rejects a command with keys of several
    // slots.
    let bus = ports::free().unwrap().to_string();
    let redis = Redis::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]).unwrap();
    text(&redis, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster is up", Duration::from_secs(20), async || {
        text(&redis, &["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(())
    })
    .await;
    let store = open(&redis.url()).await;
    for used in 1..4 {
        let asks = (0..40).map(|n| take(&format!("apart{n}"), 9, 1)).collect();
        for outcome in store.reserve(&batch(vec![], asks)).await {
            assert_eq!(outcome.map(|grant| (grant.granted, grant.used)), Ok((1, used)));
        }
    }
    let grant = one(&*store, &take("apart0", 9, 1)).await;
    store.refund(&[0, 1].map(|n| back(&take(&format!("apart{n}"), 9, 1), grant, 2))).await;
    assert_eq!(numbers(&*store, &take("apart0", 9, 1)).await, (1, 3));
    assert_eq!(numbers(&*store, &take("apart1", 9, 1)).await, (1, 2));
}

/// The number of script calls for ten counters. Subtracts the calls of a concurrent probe: it makes
/// `of_a_probe` calls, and only a probe sends `DECRBY`.
async fn calls_for_ten(redis: &Redis, store: &dyn Store, of_a_probe: usize) -> usize {
    text(redis, &["CONFIG", "RESETSTAT"]);
    let asks = (0..10).map(|n| take(&format!("ten{n}"), 99, 1)).collect();
    for outcome in store.reserve(&batch(vec![], asks)).await {
        assert_eq!(outcome.map(|grant| grant.granted), Ok(1));
    }
    let stats = text(redis, &["INFO", "commandstats"]);
    let calls = |name: &str| {
        let number =
            |line: &str| line.strip_prefix(name)?.split(['=', ',']).nth(1)?.parse::<usize>().ok();
        stats.lines().filter_map(number).sum::<usize>()
    };
    calls("cmdstat_eval") - of_a_probe * calls("cmdstat_decrby")
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_counters_share_a_call_again_after_the_script_was_lost() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    assert_eq!(calls_for_ten(&redis, &*store, 1).await, 1);
    text(&redis, &["SCRIPT", "FLUSH"]);
    assert!(calls_for_ten(&redis, &*store, 1).await > 1, "each counter needs its own call");
    assert_eq!(calls_for_ten(&redis, &*store, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_counters_share_a_call_again_after_a_redis_that_was_loading_its_data() {
    // Loading takes long enough that the store connects during it. Redis then answers `TIME`, but
    // runs no script.
    let slow = ["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"];
    let slow = [&slow[..], &["--rdbcompression", "no"]].concat();
    let mut redis = Redis::start_with(&slow).unwrap();
    let store = open(&redis.url()).await;
    assert_eq!(calls_for_ten(&redis, &*store, 1).await, 1);
    text(&redis, &["EVAL", "for i = 1, 150 do redis.call('SET', i, ('x'):rep(100)) end", "0"]);
    text(&redis, &["SAVE"]);
    redis.restart().unwrap();
    until("it serves", Duration::from_secs(10), async || {
        try_one(&*store, &take("loaded", 99, 1)).await.ok()
    })
    .await;
    // The first call may find no script, if Redis has lost it.
    calls_for_ten(&redis, &*store, 1).await;
    assert_eq!(calls_for_ten(&redis, &*store, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_read_one_at_a_time_when_no_script_can_be_loaded() {
    let redis = Redis::start().unwrap();
    text(&redis, &["ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-script"]);
    let store = open(&format!("redis://plain:secret@127.0.0.1:{}", redis.port())).await;
    // The first calls find no script and send its text.
    calls_for_ten(&redis, &*store, 4).await;
    assert_eq!(calls_for_ten(&redis, &*store, 4).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_connects_through_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock").display().to_string();
    let redis = Redis::start_with(&["--unixsocket", &socket]).unwrap();
    text(&redis, &["ACL", "SETUSER", "app", "on", ">s3cret/&+", "~*", "+@all"]);
    let store = open(&format!("redis+unix://app:s3cret%2F&+@{socket}?db=3")).await;
    assert_eq!(numbers(&*store, &take("socket", 9, 2)).await, (2, 2));
    assert!(text(&redis, &["INFO", "keyspace"]).contains("db3:keys=1"));
    let store = quotagate_store::open(&format!("redis+unix://{socket}.no").parse().unwrap(), "qg");
    assert!(try_one(&*store, &take("socket", 9, 1)).await.unwrap_err().is_outage());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_serves_again_once_redis_is_back() {
    let mut redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let ask = take("heal", 99, 1);
    one(&*store, &ask).await;
    redis.stop().unwrap();
    until("the loss is reported", Duration::from_secs(30), async || {
        let lost = try_one(&*store, &ask).await;
        assert!(lost.as_ref().is_err_and(StoreError::is_outage), "{lost:?}");
        (!store.health().faults.is_empty()).then_some(())
    })
    .await;
    redis.restart().unwrap();
    until("it serves again", Duration::from_secs(30), async || try_one(&*store, &ask).await.ok())
        .await;
    assert_eq!(store.health().faults, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_waits_for_a_redis_that_is_absent_at_start() {
    let mut redis = Redis::start().unwrap();
    redis.stop().unwrap();
    let store = quotagate_store::open(&redis.url().parse().unwrap(), "qg");
    assert!(try_one(&*store, &take("absent", 9, 1)).await.unwrap_err().is_outage());
    assert!(!store.health().faults.is_empty());
    redis.restart().unwrap();
    until("it serves", Duration::from_secs(30), async || {
        try_one(&*store, &take("absent", 9, 1)).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_redis_blocks_no_call_forever() {
    let mut redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    redis.freeze().unwrap();
    let ice = batch(vec![], vec![take("ice", 9, 1)]);
    let brief = Batch { deadline: Instant::now() + Duration::from_millis(200), ..ice };
    let reserved = tokio::time::timeout(Duration::from_secs(30), store.reserve(&brief)).await;
    assert!(reserved.unwrap().remove(0).unwrap_err().is_outage());
    redis.thaw().unwrap();
    until("it serves", Duration::from_secs(20), async || {
        try_one(&*store, &take("ice", 9, 1)).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_warns_of_eviction() {
    let redis = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]).unwrap();
    let store = quotagate_store::open(&redis.url().parse().unwrap(), "qg");
    let warnings = until("a warning", Duration::from_secs(20), async || {
        Some(store.health().warnings).filter(|warnings| !warnings.is_empty())
    })
    .await;
    assert!(warnings[0].contains("allkeys-lru"), "{warnings:?}");
    assert!(try_one(&*store, &take("evict", 9, 1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_warns_of_eviction_that_is_set_later_and_until_it_ends() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    assert!(store.health().warnings.is_empty());
    for (policy, warned) in [("volatile-lru", true), ("noeviction", false)] {
        text(&redis, &["CONFIG", "SET", "maxmemory-policy", policy]);
        until(policy, Duration::from_secs(20), async || {
            let warnings = store.health().warnings.join("\n");
            (warnings.contains(policy) == warned && warnings.is_empty() != warned).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn password_is_required_and_never_shown() {
    let redis = Redis::start().unwrap();
    text(&redis, &["ACL", "SETUSER", "app", "on", ">s3cret/%", "~*", "+@all"]);
    let at = |login: &str| redis.url().replace("redis://", &format!("redis://{login}@"));
    let store = open(&at("app:s3cret%2F%25")).await;
    assert_eq!(numbers(&*store, &take("acl", 9, 1)).await, (1, 1));
    let store = quotagate_store::open(&at("app:wr0ng").parse().unwrap(), "qg");
    let error = try_one(&*store, &take("acl", 9, 1)).await.unwrap_err().to_string();
    assert!(!error.contains("wr0ng"), "{error}");
}

/// Never more than the quota: a command with a lost answer is not retried.
#[tokio::test(flavor = "multi_thread")]
async fn reservations_and_refunds_are_not_retried_when_the_answer_is_lost() {
    let redis = Redis::start().unwrap();
    let direct = open(&redis.url()).await;
    let ask = take("once", 99, 10);
    let first = one(&*direct, &ask).await;
    let (port, cut) = proxy(redis.port()).await;
    let store = open(&format!("redis://127.0.0.1:{port}")).await;
    for (returned, used) in [(0, 20), (1, 29)] {
        cut.store(true, SeqCst);
        let refunds = if returned > 0 { vec![back(&ask, first, returned)] } else { vec![] };
        let lost = store.reserve(&batch(refunds, vec![ask.clone()])).await;
        assert!(matches!(lost[0], Err(StoreError::NoAnswer(_))), "{lost:?}");
        assert!(!cut.load(SeqCst));
        let look = Reservation { quota: 0, ..ask.clone() };
        until("it is connected again", Duration::from_secs(20), async || {
            try_one(&*store, &look).await.ok()
        })
        .await;
        assert_eq!(one(&*direct, &look).await.used, used);
    }
}

/// Forwards to Redis. If `cut` is set, Redis runs the next script call, and the connection closes
/// instead of its answer.
async fn proxy(port: u16) -> (u16, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let cutting = Arc::clone(&cut);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            tokio::spawn(forward(client, server, Arc::clone(&cutting)));
        }
    });
    (own, cut)
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            count = client.read(&mut asked) => {
                let Some(bytes @ [_, ..]) = asked.get(..count?) else { return Ok(()) };
                server.write_all(bytes).await?;
                if bytes.windows(7).any(|word| word == b"EVALSHA") && cut.swap(false, SeqCst) {
                    return server.read(&mut answered).await.map(drop);
                }
            }
            count = server.read(&mut answered) => {
                let Some(bytes @ [_, ..]) = answered.get(..count?) else { return Ok(()) };
                client.write_all(bytes).await?;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_may_have_another_password() {
    let primary = Redis::start().unwrap();
    text(&primary, &["ACL", "SETUSER", "app", "on", ">of-the-primary", "~*", "+@all"]);
    let directory = tempfile::tempdir().unwrap();
    let lines =
        "requirepass of-the-sentinels\nuser watch on >of-watch +sentinel|get-master-addr-by-name";
    let sentinel = Sentinel::start_with(&primary, lines).unwrap();
    let port = sentinel.port();
    let [default, watch, wrong] = ["of-the-sentinels", "of-watch", "wr0ng"].map(|password| {
        let file = directory.path().join(password);
        std::fs::write(&file, format!("{password}\n")).unwrap();
        file.display().to_string()
    });
    let url = |parameters: &str| {
        format!("redis-sentinel://app:of-the-primary@127.0.0.1:{port}/mymaster{parameters}")
    };
    let ask = take("sentinel", 99, 1);
    let store = open(&url(&format!("?sentinel_password_file={default}"))).await;
    assert_eq!(numbers(&*store, &ask).await, (1, 1));
    let store = open(&url(&format!("?sentinel_user=watch&sentinel_password_file={watch}"))).await;
    assert_eq!(numbers(&*store, &ask).await, (1, 2));
    for parameters in [String::new(), format!("?sentinel_password_file={wrong}")] {
        let store = quotagate_store::open(&url(&parameters).parse().unwrap(), "qg");
        let error = try_one(&*store, &ask).await.unwrap_err().to_string();
        assert!(!error.contains("wr0ng") && !error.contains("of-the"), "{error}");
        assert!(error.contains(&format!("the sentinel at 127.0.0.1:{port} ")), "{error}");
        assert!(
            error.contains("of the sentinels") || error.contains("sentinel_password"),
            "{error}"
        );
    }
}

/// The port of a server that gives this answer to the first command, and closes the connection.
async fn says_once(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut asked = [0; 64];
            let _ = client.read(&mut asked).await;
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_for_redis_is_recognized_by_what_it_says_to_time() {
    for (answer, is_proxy) in [
        // Envoy 1.40's redis_proxy, older ones, and twemproxy.
        ("*2\r\n$10\r\n1795890187\r\n$16\r\n1795890187878646\r\n", true),
        ("-ERR unknown command 'TIME', with args beginning with: \r\n", true),
        ("", true),
        ("-ERR max number of clients reached\r\n", false),
        ("-NOAUTH Authentication required.\r\n", false),
    ] {
        let port = says_once(answer).await;
        let url = format!("redis://127.0.0.1:{port}");
        let store = quotagate_store::open(&url.parse().unwrap(), "qg");
        let fault = until("a fault", Duration::from_secs(20), async || {
            store.health().faults.into_iter().find(|fault| !fault.starts_with("connecting"))
        })
        .await;
        assert_eq!(fault.contains("redis_proxy"), is_proxy, "{answer:?}: {fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_lead_to_the_new_primary() {
    let mut primary = Redis::start().unwrap();
    let follows = [
        "--replicaof",
        "127.0.0.1",
        &primary.port().to_string(),
        "--repl-diskless-sync-delay",
        "0",
    ];
    let replica = Redis::start_with(&follows).unwrap();
    let sentinel = Sentinel::start(&primary).unwrap();
    let port = sentinel.port();
    // The first sentinel in the list is down.
    let store = open(&format!(
        "redis-sentinel://127.0.0.1:{},127.0.0.1:{port}/mymaster",
        ports::free().unwrap()
    ))
    .await;
    let ask = take("sentinel", 99, 5);
    assert_eq!(numbers(&*store, &ask).await, (5, 5));
    let known =
        async || resp::command(port, &["SENTINEL", "REPLICAS", "mymaster"]).unwrap().lines();
    until(
        "the sentinel knows the replica, which has the counter",
        Duration::from_secs(15),
        async || {
            let found = known().await.contains(&replica.port().to_string());
            (found && text(&replica, &["DBSIZE"]) == "1").then_some(())
        },
    )
    .await;
    primary.stop().unwrap();
    let grant = until("the new primary serves", Duration::from_secs(20), async || {
        try_one(&*store, &ask).await.ok()
    })
    .await;
    assert_eq!((grant.granted, grant.used), (5, 10));
}

/// During a network split, sentinels may disagree, and the old primary does not know the new one.
#[tokio::test(flavor = "multi_thread")]
async fn store_follows_the_majority_of_sentinels_although_the_old_primary_answers() {
    let (old, new) = (Redis::start().unwrap(), Redis::start().unwrap());
    let sentinels = [(); 3].map(|()| Sentinel::start(&old).unwrap());
    let ports = sentinels.each_ref().map(Sentinel::port);
    for port in ports {
        until("a sentinel answers", Duration::from_secs(10), async || {
            resp::command(port, &["PING"]).ok()
        })
        .await;
    }
    let named = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let store = open(&format!("redis-sentinel://{named}/mymaster")).await;
    let ask = take("split", 99, 5);
    assert_eq!(numbers(&*store, &ask).await, (5, 5));
    let follow = |port: u16| {
        let to = new.port().to_string();
        resp::command(port, &["SENTINEL", "REMOVE", "mymaster"]).unwrap();
        resp::command(port, &["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &to, "2"]).unwrap();
    };
    follow(ports[1]);
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(numbers(&*store, &ask).await, (5, 10), "one of three is a minority");
    follow(ports[2]);
    until("the store leaves the old primary", Duration::from_secs(15), async || {
        (text(&new, &["DBSIZE"]) != "0" || try_one(&*store, &ask).await.ok()?.used == 5)
            .then_some(())
    })
    .await;
    assert_eq!(store.health().faults, [""; 0]);
}

/// The writes of a coordinated failover wait until the replica has taken over. Then the old primary
/// rejects them, and the store sends them to the new one.
#[tokio::test(flavor = "multi_thread")]
async fn failover_under_load_counts_every_grant_once() {
    let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]).unwrap();
    let (own, to) = (primary.port().to_string(), |redis: &Redis| redis.port().to_string());
    let follows = ["--replicaof", "127.0.0.1", &own, "--repl-diskless-sync-delay", "0"];
    let replica = Redis::start_with(&follows).unwrap();
    let sentinel = Sentinel::start(&primary).unwrap();
    let port = sentinel.port();
    let store = open(&sentinel.url()).await;
    until("the replica is connected", Duration::from_secs(30), async || {
        text(&primary, &["INFO", "replication"]).contains("state=online").then_some(())
    })
    .await;
    let (stop, after) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let caller = || {
        let (store, stop, after) = (Arc::clone(&store), Arc::clone(&stop), Arc::clone(&after));
        tokio::spawn(async move {
            let (mut granted, mut unsure, mut served) = (0_u64, 0_u64, 0_u64);
            while !stop.load(SeqCst) {
                let late = after.load(SeqCst);
                match try_one(&*store, &take("failover", 1_000_000, 1)).await {
                    Ok(grant) => {
                        granted += grant.granted;
                        served += u64::from(late);
                    }
                    Err(StoreError::NoAnswer(_)) => unsure += 1,
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (granted, unsure, served)
        })
    };
    let callers: Vec<_> = (0..16).map(|_| caller()).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    text(&primary, &["FAILOVER", "TO", "127.0.0.1", &to(&replica)]);
    until("the replica takes over", Duration::from_secs(30), async || {
        text(&replica, &["INFO", "replication"]).contains("role:master").then_some(())
    })
    .await;
    resp::command(port, &["SENTINEL", "REMOVE", "mymaster"]).unwrap();
    let monitor = ["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &to(&replica), "1"];
    resp::command(port, &monitor).unwrap();
    until("the new primary serves", Duration::from_secs(30), async || {
        try_one(&*store, &take("other", 9, 1)).await.ok()
    })
    .await;
    after.store(true, SeqCst);
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, SeqCst);
    let (mut granted, mut unsure, mut served) = (0, 0, 0);
    for caller in callers {
        let seen = caller.await.unwrap();
        (granted, unsure, served) = (granted + seen.0, unsure + seen.1, served + seen.2);
    }
    let look = Reservation { quota: 0, ..take("failover", 0, 1) };
    let used = one(&*store, &look).await.used;
    assert!(served > 0, "nothing was granted after the failover");
    assert!(
        (granted..=granted + unsure).contains(&used),
        "{used} counted, {granted} granted, {unsure} without an answer"
    );
}
