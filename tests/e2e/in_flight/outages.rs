//! Proxies that die or pause, and a Redis that loses what it knew.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::cluster::{Cluster, SlotMove};
use quotagate_support::envoy::{Envoy, EnvoyOptions, edits};
use quotagate_support::http;
use quotagate_support::http::Request;
use quotagate_support::http2::{Http2Client, OpenStream};
use quotagate_support::redis::Redis;
use quotagate_support::resp::Reply;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::{HOLD_HEADER, Upstream};
use quotagate_support::wait;
use serde_json::Value;

use super::{at_once, echo, held, open, until_held};
use crate::two_proxies::Fleet;

/// A store counts slots for 9 s from the last message of their worker. The rest is for a request
/// that asks for them, and for a busy machine.
const EXPIRED: Duration = Duration::from_secs(11);
/// Workers say every 3 s what they hold. The rest is for a busy machine, and less than a store
/// counts slots for.
const SAID: Duration = Duration::from_secs(8);

/// The statuses of a request to each proxy.
fn statuses(fleet: &Fleet) -> Result<[u16; 2]> {
    let status =
        |proxy: usize| Ok::<_, anyhow::Error>(http::get(fleet.envoys[proxy].port(), "/")?.status);
    Ok([status(0)?, status(1)?])
}

/// Many streams over a few connections to one proxy, so that both of its workers have some.
struct Streams {
    connections: Vec<(Http2Client, Vec<OpenStream>)>,
}

impl Streams {
    const CONNECTIONS: usize = 8;

    fn connect(port: u16) -> Result<Self> {
        let connect = |_| Ok((Http2Client::connect(port)?, Vec::new()));
        Ok(Self { connections: (0..Self::CONNECTIONS).map(connect).collect::<Result<_>>()? })
    }

    fn len(&self) -> usize {
        self.connections.iter().map(|(_, open)| open.len()).sum()
    }

    /// Opens so many more streams, as far as they are admitted.
    fn open(&mut self, more: usize) -> Result<()> {
        let held = Request::get("/").header(HOLD_HEADER, "");
        let each = more.div_ceil(Self::CONNECTIONS);
        let mut left = more;
        for (client, open) in &mut self.connections {
            let now = each.min(left);
            left -= now;
            for stream in client.open(now, &held)? {
                match stream.head().status {
                    200 => open.push(stream),
                    other => assert_eq!(other, 429),
                }
            }
        }
        Ok(())
    }

    /// Ends one stream.
    fn close_one(&mut self) {
        if let Some((client, open)) = self.connections.iter_mut().find(|(_, open)| !open.is_empty())
        {
            let one = open.drain(..1).collect();
            client.close(one);
        }
    }
}

/// Streams over HTTP/2 that may last.
fn lasting(config: &mut Value) -> Result<()> {
    edits::http2_upstream(config)?;
    edits::route_timeout("0s")(config)
}

#[test]
fn slots_of_a_killed_proxy_are_free_within_ten_seconds_and_those_of_the_other_stay() -> Result<()> {
    const EACH: usize = 500;
    let mut fleet = Fleet::start_with(&at_once(2 * EACH as u64), lasting)?;
    let mut lives = Streams::connect(fleet.envoys[0].port())?;
    let mut dies = Streams::connect(fleet.envoys[1].port())?;
    lives.open(EACH)?;
    dies.open(EACH)?;
    // A worker may keep a slot for a moment that the last streams of another one need.
    wait::until_true("all streams to be open", EXPIRED, || {
        lives.open(EACH - lives.len())?;
        dies.open(EACH - dies.len())?;
        Ok((lives.len(), dies.len()) == (EACH, EACH))
    })?;
    assert_eq!(statuses(&fleet)?, [429, 429]);
    fleet.envoys[1].kill()?;
    let killed = Instant::now();
    wait::until_true("the slots of the killed proxy", EXPIRED, || {
        let free = http::get(fleet.envoys[0].port(), "/")?.status == 200;
        lives.open(if free { 2 * EACH - lives.len() } else { 0 })?;
        thread::sleep(Duration::from_millis(50));
        Ok(lives.len() == 2 * EACH)
    })?;
    println!("all slots were back {:?} after the kill", killed.elapsed());
    assert_eq!(http::get(fleet.envoys[0].port(), "/")?.status, 429, "its own streams count");
    assert_eq!(fleet.upstream.peak(), 2 * EACH as u64);
    lives.close_one();
    wait::until_true("the slot of an ended stream", SAID, || {
        Ok(http::get(fleet.envoys[0].port(), "/")?.status == 200)
    })
}

/// Two proxies with two WebSockets each, which hold all slots.
fn full() -> Result<(Fleet, Vec<http::Client>)> {
    let fleet = Fleet::start_with(&at_once(4), edits::websocket)?;
    let mut clients = fleet.clients(4)?;
    open(&mut clients)?;
    Ok((fleet, clients))
}

#[test]
fn limit_holds_again_after_one_heartbeat_when_redis_has_lost_its_content() -> Result<()> {
    let losses: [fn(&mut Redis) -> Result<()>; 2] =
        [|redis| redis.cli(&["FLUSHALL"]).map(drop), Redis::restart];
    let (mut fleet, mut clients) = full()?;
    let workers = |redis: &Redis| redis.cli(&["HLEN", "qg:shop:running:{*}:slots"]);
    let all = workers(&fleet.redis)?;
    assert_ne!(all, Reply::Integer(0));
    for lose in losses {
        lose(&mut fleet.redis)?;
        let lost = Instant::now();
        wait::until_true("every worker to say what it holds", SAID, || {
            Ok(workers(&fleet.redis)? == all)
        })?;
        println!("all slots were held again after {:?}", lost.elapsed());
        assert_eq!(statuses(&fleet)?, [429, 429]);
        echo(&mut clients)?;
    }
    Ok(())
}

/// The pause ends when the slots have expired, after 9 s. A longer one shows nothing more.
#[test]
fn proxy_that_was_paused_admits_nothing_until_its_streams_fit() -> Result<()> {
    let (mut fleet, mut clients) = full()?;
    until_held(&fleet.stores[0], &[2, 2])?;
    fleet.envoys[1].freeze()?;
    let mut others = Vec::new();
    wait::until_true("the slots of the paused proxy", EXPIRED, || {
        let mut client = http::Client::connect(fleet.envoys[0].port())?;
        let admitted = open(std::slice::from_mut(&mut client)).is_ok();
        others.extend(admitted.then_some(client));
        thread::sleep(Duration::from_millis(50));
        Ok(others.len() == 2)
    })?;
    fleet.envoys[1].thaw()?;
    assert_eq!(statuses(&fleet)?, [429, 429]);
    until_held(&fleet.stores[0], &[4, 2])?;
    echo(&mut clients)?;
    // Its streams count: the limit is reached without the two others, and exceeded with them.
    others.pop();
    until_held(&fleet.stores[0], &[3, 2])?;
    assert_eq!(statuses(&fleet)?, [429, 429]);
    drop(others);
    until_held(&fleet.stores[0], &[2, 2])?;
    assert_eq!(statuses(&fleet)?, [429, 429]);
    clients.truncate(3);
    wait::until_true("a slot to be free", SAID, || Ok(statuses(&fleet)? == [200, 200]))?;
    assert!(held(&fleet.stores[0], "running")?.iter().sum::<u64>() <= 4);
    Ok(())
}

#[test]
fn limit_holds_after_a_replica_of_redis_has_taken_over() -> Result<()> {
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"])?;
    let store = StoreProcess::start(&cluster.url(), &[])?;
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&cluster.url());
    let options = options.document(at_once(4)).edit(edits::websocket);
    let envoys = [Envoy::start(&options)?, Envoy::start(&options)?];
    let connect = |proxy: usize| http::Client::connect(envoys[proxy].port());
    let mut clients = [0, 1, 0, 1].map(connect).into_iter().collect::<Result<Vec<_>>>()?;
    open(&mut clients)?;
    until_held(&store, &[2, 2])?;
    let statuses = || -> Result<[u16; 2]> {
        Ok([http::get(envoys[0].port(), "/")?.status, http::get(envoys[1].port(), "/")?.status])
    };
    assert_eq!(statuses()?, [429, 429]);
    let (primary, other) = {
        let slot = SlotMove::of(&cluster, "*")?;
        (slot.from(), slot.to())
    };
    cluster.kill_node(primary)?;
    let failed = Instant::now();
    // A proxy remembers the last refusal for 20 ms.
    wait::until_true("the outage", SAID, || Ok(statuses()? == [503, 503]))?;
    wait::until_true("the replica to serve", Duration::from_secs(60), || {
        Ok(cluster.cli(other, &["CLUSTER", "INFO"])?.lines().contains("cluster_slots_fail:0")
            && statuses()? == [429, 429])
    })?;
    println!("the replica served after {:?}", failed.elapsed());
    until_held(&store, &[2, 2])?;
    assert_eq!(statuses()?, [429, 429]);
    echo(&mut clients)?;
    drop(clients);
    wait::until_true("slots to be free", SAID, || Ok(statuses()? == [200, 200]))
}
