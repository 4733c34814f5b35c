//! How many reservations one Redis carries out in a second, and what each costs it, by `redis-benchmark`: with a
//! PING beside it, for most of a round trip is none of the script's.

use std::{
    fs::{self, File},
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::{paths, redis::Redis, resp::Reply, tools};

use crate::bench::{counts, cpu};

/// Commands of each measurement.
const COMMANDS: u32 = 100_000;
/// Redis spends at most this on a reservation, in ns.
const BUDGET: f64 = 15_000.0;
const WINDOW_S: u64 = 3600;
/// Connections, and commands under way on each.
const LOADS: [(u32, u32); 4] = [(1, 1), (4, 1), (4, 16), (4, 64)];

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    name: &'static str,
    connections: u32,
    pipeline: u32,
    /// In a second.
    rate: f64,
    /// Processor time of Redis for each, in ns.
    each: f64,
}

/// Measures on a Redis of its own.
pub fn run() -> Result<Vec<Measured>> {
    let program = tools::on_path("redis-benchmark")
        .context("redis-benchmark is not on PATH: it comes with redis-server (Debian: redis-tools)")?;
    let redis = Redis::start()?;
    let source = fs::read_to_string(paths::root().join("crates/store/src/redis/counter.lua"))?;
    let digest = redis.cli(&["SCRIPT", "LOAD", &source])?.lines();
    let info = redis.cli(&["INFO", "server"])?.lines();
    let pid = counts::process_id(&info).context("Redis names no process")?;
    let reservation = reservation(&redis, &digest)?;
    let mut wish = tempfile::NamedTempFile::new()?;
    wish.write_all(&one_unit(window(&redis)?))?;

    let mut all = Vec::new();
    for (name, command) in [("PING", &["PING".to_owned()][..]), ("reservation", &reservation)] {
        for (connections, pipeline) in LOADS {
            let before = cpu::used(pid)?;
            let mut benchmark = Command::new(&program);
            benchmark.args(["-h", "127.0.0.1", "-p", &redis.port().to_string(), "--csv", "-r", "1000"]);
            benchmark.args(["-n", &COMMANDS.to_string(), "-c", &connections.to_string()]);
            benchmark.args(["-P", &pipeline.to_string()]).args(command);
            if name == "reservation" {
                // Its last argument is no text.
                benchmark.arg("-x").stdin(File::open(wish.path())?);
            } else {
                benchmark.stdin(Stdio::null());
            }
            let output = benchmark.output().context("redis-benchmark cannot be run")?;
            let printed = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "redis-benchmark failed: {printed}");
            let rate = rate(&printed).with_context(|| format!("redis-benchmark says {printed}"))?;
            let each = cpu::micros(cpu::used(pid)?.saturating_sub(before)) * 1e3 / f64::from(COMMANDS);
            all.push(Measured { name, connections, pipeline, rate, each });
        }
    }
    try_out(&redis)?;
    Ok(all)
}

/// The number of the window that runs.
fn window(redis: &Redis) -> Result<u64> {
    let Reply::List(time) = redis.cli(&["TIME"])? else { bail!("Redis does not know the time") };
    let seconds: u64 = time.first().context("Redis does not know the time")?.lines().parse()?;
    Ok(seconds / WINDOW_S)
}

/// What the script is told of a reservation of one unit, in its own form: doubles, little-endian.
fn one_unit(window: u64) -> Vec<u8> {
    let (want, min) = (1.0, 1.0);
    let (offset, spare, count_denied) = (0.0, 0.0, 0.0);
    // No override is looked for: its place in the key would be the length of a key that is random here.
    let stem = 0.0;
    let numbers = [window as f64, WINDOW_S as f64, offset, 1e9, want, min, spare, count_denied, stem];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// All but the last argument of a reservation for one of a thousand users.
fn reservation(redis: &Redis, digest: &str) -> Result<Vec<String>> {
    let key = format!("qg:bench:per-user:{{header.x-user=user-__rand_int__}}:{}", window(redis)?);
    Ok(["EVALSHA", digest, "1", &key].map(str::to_owned).to_vec())
}

/// A script that refuses its arguments would be quick: nothing would be counted.
fn try_out(redis: &Redis) -> Result<()> {
    match redis.cli(&["DBSIZE"])? {
        Reply::Integer(1..) => Ok(()),
        reply => bail!("the script grants nothing: {reply:?} counters"),
    }
}

/// The second field of the last line: `"test","rps",...` and then `"EVALSHA ...","12345.67",...`.
fn rate(csv: &str) -> Option<f64> {
    csv.lines().rev().find_map(|line| line.split("\",\"").nth(1)?.parse().ok())
}

/// As Markdown.
pub fn table(all: &[Measured]) -> String {
    let mut lines = vec![
        "| Redis | connections | pipeline | a second | Redis ns each | budget ns | |".to_owned(),
        "|---|---:|---:|---:|---:|---:|---|".to_owned(),
    ];
    lines.extend(all.iter().map(|measured| {
        let Measured { name, connections, pipeline, rate, each } = measured;
        // What a call of one command costs is the network's; the script shows where many share it.
        let judged = *name == "reservation" && *pipeline > 1;
        let budget = if judged { format!("{BUDGET:.0}") } else { "-".to_owned() };
        let verdict = if judged && *each > BUDGET { "above its budget" } else { "" };
        format!("| {name} | {connections} | {pipeline} | {rate:.0} | {each:.0} | {budget} | {verdict} |")
    }));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_second_field() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA a, 1 \"\"k\"\"\",\"52083.33\",\"0.1\"\n";
        assert_eq!(rate(csv), Some(52_083.33));
        assert_eq!(rate("\"test\",\"rps\"\n"), None);
        assert_eq!(rate(""), None);
    }

    #[test]
    fn what_the_script_is_told_is_what_it_counts() {
        let redis = Redis::start().unwrap();
        let source = fs::read_to_string(paths::root().join("crates/store/src/redis/counter.lua")).unwrap();
        let sent = one_unit(window(&redis).unwrap());
        let bytes: String = sent.iter().map(|byte| format!("\\{byte:03}")).collect();
        // A script of its own, for the arguments are no text.
        let told = source.replacen("local RESERVE =", &format!("ARGV = {{'{bytes}'}}\nlocal RESERVE ="), 1);
        assert!(try_out(&redis).is_err());
        let key = format!("k:{}", window(&redis).unwrap());
        redis.cli(&["EVAL", &told, "1", &key]).unwrap();
        assert_eq!(redis.cli(&["GET", &key]).unwrap(), Reply::Text("1".into()));
        assert!(try_out(&redis).is_ok());
    }

    #[test]
    fn only_pipelined_reservations_have_a_budget() {
        let of = |name, pipeline, each| Measured { name, connections: 4, pipeline, rate: 1.0, each };
        let text = table(&[of("PING", 16, 9e9), of("reservation", 1, 9e9), of("reservation", 16, 9e9)]);
        assert_eq!(text.matches("above its budget").count(), 1, "{text}");
    }
}
