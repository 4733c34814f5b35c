//! Writes an access log as Envoy would, for measuring: `generate --bytes 2000000000 > access.log`.
//!
//! A week of requests of users with a popularity by Zipf's law, nearly in order of time: Envoy
//! writes a line when the request ends. The same arguments give the same bytes.

use std::io::{self, BufWriter, Write as _};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

const USERS: f64 = 1_000_000.0;
const EXPONENT: f64 = 0.9;
const BEGIN_MS: u64 = 1_795_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some("--bytes"), Some(bytes)) = (arguments.next().as_deref(), arguments.next()) else {
        return Err("usage: generate --bytes N [--users N]".into());
    };
    let bytes: u64 = bytes.parse()?;
    let users = match arguments.next().as_deref() {
        Some("--users") => arguments.next().ok_or("--users N")?.parse()?,
        _ => USERS,
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(6);
    let zipf = Zipf::new(users, EXPONENT)?;
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let (mut written, mut now) = (0, BEGIN_MS);
    // The log spans a week at any size.
    let gap = (7.0 * 86_400_000.0 * 390.0 / bytes as f64).max(0.000_1);
    let mut passed = 0.0;
    while written < bytes {
        passed += gap * 2.0 * random.random::<f64>();
        now = now.max(BEGIN_MS + passed as u64);
        let user = zipf.sample(&mut random) as u64;
        let late = if random.random_bool(0.01) {
            random.random_range(0..20_000)
        } else {
            random.random_range(0..80)
        };
        let line = line(&mut random, user, now - late);
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    Ok(out.flush()?)
}

fn line(random: &mut Xoshiro256PlusPlus, user: u64, at: u64) -> String {
    let (seconds, milliseconds) = (at / 1000, at % 1000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // All of November and December 2026.
    let day = day - 20_758;
    let (month, day) = if day < 30 { (11, day + 1) } else { (12, day - 29) };
    let time = format!(
        "2026-{month:02}-{day:02}T{:02}:{:02}:{:02}.{milliseconds:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    );
    let item: u32 = random.random_range(0..100_000);
    let duration: u32 = random.random_range(1..80);
    let bytes: u32 = random.random_range(100..9000);
    let id: u64 = random.random();
    let used: u32 = random.random_range(1..60);
    if random.random_bool(0.02) {
        return format!(
            "{{\"time\":\"{time}\",\"method\":\"GET\",\"path\":\"/healthz\",\"status\":200,\"details\":\"direct_response\",\
             \"duration\":{duration},\"bytes\":{bytes},\"request_id\":\"{id:016x}\",\"quota_decision\":null,\
             \"quota_policy\":null,\"quota_partition\":null,\"quota_used\":null}}\n"
        );
    }
    format!(
        "{{\"time\":\"{time}\",\"method\":\"GET\",\"path\":\"/api/v1/items/{item}\",\"status\":200,\
         \"details\":\"via_upstream\",\"duration\":{duration},\"bytes\":{bytes},\"request_id\":\"{id:016x}\",\
         \"user_agent\":\"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 \\\"shop\\\"/4.2\",\
         \"quota_decision\":\"admitted\",\"quota_policy\":\"per-caller\",\
         \"quota_partition\":\"jwt.sub=user-{user:07}\",\"quota_used\":\"{used}\"}}\n"
    )
}
