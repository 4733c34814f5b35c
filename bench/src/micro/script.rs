//! How many reservations one Redis executes per second, and the cost of each. PING stands beside it
//! for comparison, since most of a round trip is not the script.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quotagate_support::{paths, redis::Redis, resp::Reply};

use crate::measure::cpu;

/// Commands of each measurement.
const COMMANDS: usize = 100_000;
/// The budget of Redis for a reservation, in ns.
const BUDGET: f64 = 15_000.0;
const WINDOW_S: u64 = 3600;
/// The slices of a sliding window.
const SLICES: u64 = 20;
const USERS: usize = 1000;
/// The name of the reservation that has a budget.
const FIXED: &str = "reservation";
/// Connections, and commands under way on each.
const LOADS: [(usize, usize); 4] = [(1, 1), (4, 1), (4, 16), (4, 64)];
/// The longest that Redis may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct ScriptMeasurement {
    name: &'static str,
    connections: usize,
    pipeline: usize,
    /// In a second.
    rate: f64,
    /// Processor time of Redis for each, in ns.
    each: f64,
}

/// Commands of one kind, one per user, and the bytes of each reply.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    commands: Vec<Vec<u8>>,
    bytes: usize,
}

/// Measures a Redis of its own.
pub fn run() -> Result<Vec<ScriptMeasurement>> {
    let redis = Redis::start()?;
    let info = redis.cli(&["INFO", "server"])?.lines();
    let pid = cpu::of_redis(&info).context("Redis names no process")?;
    let ping = Kind { name: "PING", commands: vec![command(&[b"PING"])], bytes: 7 };
    let [fixed, sliding] = reservations(&redis)?;

    let mut all = Vec::new();
    for kind in [&ping, &fixed, &sliding] {
        for (connections, pipeline) in LOADS {
            let (before, start) = (cpu::used(pid)?, Instant::now());
            thread::scope(|scope| {
                let senders: Vec<_> = (0..connections)
                    .map(|_| {
                        scope.spawn(|| send(redis.port(), kind, COMMANDS / connections, pipeline))
                    })
                    .collect();
                senders.into_iter().try_for_each(|sender| match sender.join() {
                    Ok(sent) => sent,
                    Err(_) => bail!("a connection's thread panicked"),
                })
            })?;
            let rate = COMMANDS as f64 / start.elapsed().as_secs_f64();
            let each = cpu::micros(cpu::used(pid)?.saturating_sub(before)) * 1e3 / COMMANDS as f64;
            all.push(ScriptMeasurement { name: kind.name, connections, pipeline, rate, each });
        }
    }
    counted(&redis, 2 * USERS)?;
    Ok(all)
}

/// Sends so many commands, `pipeline` at a time, and waits for their replies.
fn send(port: u16, kind: &Kind, commands: usize, pipeline: usize) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut next = kind.commands.iter().cycle();
    let mut replies = vec![0; kind.bytes * pipeline];
    for _ in 0..commands / pipeline {
        stream.write_all(&next.by_ref().take(pipeline).flatten().copied().collect::<Vec<u8>>())?;
        stream.read_exact(&mut replies).context("Redis does not answer")?;
        if let Some(refusal) = replies.chunks(kind.bytes).find(|reply| reply.starts_with(b"-")) {
            bail!("Redis refuses: {}", String::from_utf8_lossy(refusal));
        }
    }
    Ok(())
}

/// Reserves one unit for each of a thousand users, with the store's own script: of a fixed window,
/// and of a sliding one.
fn reservations(redis: &Redis) -> Result<[Kind; 2]> {
    let source =
        fs::read_to_string(paths::root().join("crates/store/src/redis/script/counter.lua"))?;
    let digest = redis.cli(&["SCRIPT", "LOAD", &source])?.lines();
    let window = window(redis)?;
    let fixed = (window.to_string(), [window * WINDOW_S, (window + 1) * WINDOW_S]);
    let sliding = (format!("s{WINDOW_S}"), [WINDOW_S * 1000 / SLICES, 0]);
    let commands = |(counter, window): (String, [u64; 2])| {
        let of = |user| {
            let stem = format!("qg:bench:per-user:{{header.x-user=user-{user}}}:");
            let (key, argument) = (format!("{stem}{counter}"), one_unit(window, stem.len()));
            command(&[b"EVALSHA", digest.as_bytes(), b"1", key.as_bytes(), &argument])
        };
        (0..USERS).map(of).collect()
    };
    Ok([
        // A text of four doubles, or five: `$32`, the text, and two ends of a line.
        Kind { name: FIXED, commands: commands(fixed), bytes: 39 },
        Kind { name: "reservation, sliding", commands: commands(sliding), bytes: 47 },
    ])
}

/// The number of the current window.
fn window(redis: &Redis) -> Result<u64> {
    let Reply::List(time) = redis.cli(&["TIME"])? else { bail!("Redis does not know the time") };
    let seconds: u64 = time.first().context("Redis does not know the time")?.lines().parse()?;
    Ok(seconds / WINDOW_S)
}

/// The script's argument for a reservation of one unit: little-endian doubles.
fn one_unit([first, second]: [u64; 2], stem: usize) -> Vec<u8> {
    let (quota, want, min) = (1e9, 1.0, 1.0);
    let (spare, count_denied) = (0.0, 0.0);
    let numbers = [first as f64, second as f64, quota, want, min, spare, count_denied, stem as f64];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A command in the Redis protocol.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend_from_slice(word);
        out.extend(b"\r\n");
    }
    out
}

/// A script that rejects its arguments would be fast, so check that it counted.
fn counted(redis: &Redis, counters: usize) -> Result<()> {
    match redis.cli(&["DBSIZE"])? {
        Reply::Integer(found) if usize::try_from(found) == Ok(counters) => Ok(()),
        reply => bail!("the script has {reply:?} counters, and not {counters}"),
    }
}

/// As Markdown.
pub fn table(all: &[ScriptMeasurement]) -> String {
    let mut lines = vec![
        "| Redis | connections | pipeline | a second | Redis ns each | budget ns | |".to_owned(),
        "|---|---:|---:|---:|---:|---:|---|".to_owned(),
    ];
    lines.extend(all.iter().map(|measured| {
        let ScriptMeasurement { name, connections, pipeline, rate, each } = measured;
        // The network makes up most of a call of one command. The cost of the script shows if many
        // share a call.
        let judged = *name == FIXED && *pipeline > 1;
        let budget = if judged { format!("{BUDGET:.0}") } else { "-".to_owned() };
        let verdict = if judged && *each > BUDGET { "above its budget" } else { "" };
        format!(
            "| {name} | {connections} | {pipeline} | {rate:.0} | {each:.0} | {budget} | {verdict} |"
        )
    }));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_script_counts_units() {
        let redis = Redis::start().unwrap();
        let [fixed, sliding] = reservations(&redis).unwrap();
        assert!(counted(&redis, USERS).is_err(), "nothing was sent");
        send(redis.port(), &fixed, 2 * USERS, 16).unwrap();
        counted(&redis, USERS).unwrap();
        send(redis.port(), &sliding, 2 * USERS, 16).unwrap();
        counted(&redis, 2 * USERS).unwrap();
        let key = format!("qg:bench:per-user:{{header.x-user=user-7}}:{}", window(&redis).unwrap());
        assert_eq!(redis.cli(&["GET", &key]).unwrap(), Reply::Text("2".into()));
        let refused = Kind { name: "-", commands: vec![command(&[b"NO-SUCH-COMMAND"])], bytes: 7 };
        assert!(send(redis.port(), &refused, 16, 16).is_err());
    }

    #[test]
    fn only_pipelined_reservations_have_a_budget() {
        let of = |name, pipeline, each| ScriptMeasurement {
            name,
            connections: 4,
            pipeline,
            rate: 1.0,
            each,
        };
        let text =
            table(&[of("PING", 16, 9e9), of("reservation", 1, 9e9), of("reservation", 16, 9e9)]);
        assert_eq!(text.matches("above its budget").count(), 1, "{text}");
    }
}
