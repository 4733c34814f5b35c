//! The shipped files as they are: quotas are exact, whatever form the filter has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, ensure};
use quotagate_support::envoy::Form;
use quotagate_support::http::{Client, Request};

use crate::checks::Checks;
use crate::istio::exact::{SENT, exact};
use crate::istio::mesh::{Verdict, Verdicts};

use super::gateways::{Gateways, PORTS, ask, by};

const HOST: &str = "any.example";
const CONNECTIONS: usize = 10;

/// Runs the checks.
pub fn check(gateways: &Gateways, checks: &mut Checks) {
    let [first, both] = match gateways.form {
        Form::Wasm => ["eg.exact", "eg.two_gateways"],
        Form::Native => ["eg.native.exact", "eg.native.two_gateways"],
    };
    checks.check(first, "the shipped file unchanged: exact quota by token", || {
        exactly_one_quota("exact", &PORTS[..1])
    });
    checks.check(both, "two Gateways share one quota", || exactly_one_quota("both", &PORTS));
    if gateways.form == Form::Native {
        return;
    }
    checks.check("eg.headers", "answers say what is left, refusals when to retry", || {
        fresh_window();
        let request = by(HOST, "headers")?;
        let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
        let admitted = ask(PORTS[0], &request)?;
        let values: Vec<_> = names.iter().filter_map(|name| admitted.header(name)).collect();
        ensure!(values.len() == names.len() && values.starts_with(&["100", "99"]), "{admitted:?}");
        burst(&PORTS[..1], &request, SENT)?;
        let refused = ask(PORTS[0], &request)?;
        let retry = refused.header("retry-after");
        ensure!(refused.status == 429 && retry.is_some(), "{refused:?}");
        Ok(format!("limit, remaining, reset {values:?}, then 429 with retry-after {retry:?}"))
    });
}

/// That a caller gets exactly the quota. If a busy machine kept calls from the store for longer
/// than the shipped `store.timeout`, such requests passed uncounted, and the next caller shows it.
fn exactly_one_quota(subject: &str, ports: &[u16]) -> Result<String> {
    const ATTEMPTS: usize = 3;
    let mut seen = Err(anyhow!("no attempt"));
    for attempt in 0..ATTEMPTS {
        let verdicts = burst(ports, &by(HOST, &format!("{subject}-{attempt}"))?, SENT)?;
        seen = exact(&verdicts);
        if seen.is_ok() || !verdicts.contains_key(&Verdict::Uncounted) {
            break;
        }
    }
    seen
}

/// Sends a request so many times over several connections to these ports in turn.
fn burst(ports: &[u16], request: &Request, times: usize) -> Result<Verdicts> {
    fresh_window();
    let next = AtomicUsize::new(0);
    let client = |port: u16| -> Result<Verdicts> {
        let mut client = Client::connect(port)?;
        let mut verdicts = BTreeMap::new();
        while next.fetch_add(1, Relaxed) < times {
            *verdicts.entry(Verdict::of(&client.send(request)?)).or_default() += 1;
        }
        Ok(verdicts)
    };
    thread::scope(|scope| {
        let ports = ports.iter().cycle().take(CONNECTIONS);
        let clients: Vec<_> = ports.map(|port| scope.spawn(move || client(*port))).collect();
        let mut all = Verdicts::new();
        for client in clients {
            for (verdict, count) in client.join().map_err(|_| anyhow!("a client panicked"))?? {
                *all.entry(verdict).or_default() += count;
            }
        }
        Ok(all)
    })
}

/// Waits for a minute that has room for a check: the shipped policy counts by the minute.
fn fresh_window() {
    const ROOM: u64 = 10;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if now % 60 > 60 - ROOM {
        thread::sleep(Duration::from_secs(60 - now % 60));
    }
}
