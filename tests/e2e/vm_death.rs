//! The VM of one worker dies while requests wait in it. A header kills it, which only the test
//! build knows.
//!
//! | case | expected |
//! | --- | --- |
//! | requests that waited in that VM | end within the `idle_timeout` of their route |
//! | requests of the other worker | are not affected |
//! | later requests | are counted by a fresh VM; units of the dead one are lost |

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result};
use quotagate_support::envoy::{EnvoyOptions, Form};
use quotagate_support::http::{Client, Request};
use quotagate_support::{edits, paths, wait};
use serde_json::json;

use crate::inspect;
use crate::rig::{Rig, document, per_caller};

const PANIC: &str = "x-quotagate-panic";
/// Enough connections that each of two workers has some.
const CLIENTS: usize = 24;
const QUOTA: u64 = 400;
/// The `idle_timeout` of the route, shorter than the shipped one. The rest of [`ENDED`] allows for
/// a slow machine.
const IDLE: &str = "15s";
const ENDED: Duration = Duration::from_secs(25);
/// Far above the time of a normal request, below that of a request whose worker died.
const HELD: Duration = Duration::from_secs(8);
const SPENT: Duration = Duration::from_secs(30);

fn panicking(options: EnvoyOptions) -> EnvoyOptions {
    let mut options = options.concurrency(2).edit(edits::idle_timeout(IDLE));
    options.wasm = paths::panicking_filter();
    options
}

#[test]
fn worker_that_loses_its_vm_ends_waiting_requests_and_resumes_counting() -> Result<()> {
    if !Form::Wasm.is_under_test("a virtual machine that dies")? {
        return Ok(());
    }
    let mut rig = Rig::start_with(document(json!([per_caller(QUOTA)])), panicking)?;
    let mut clients = (0..CLIENTS).map(|_| rig.client()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        assert_eq!(client.send(&Request::get("/"))?.status, 200);
    }
    // All requests wait for a paused store. Then one of them kills the VM that it waits in.
    rig.store.freeze()?;
    let mut killer = clients.pop().context("clients")?;
    for client in &mut clients {
        client.set_timeout(ENDED)?;
        client.start(&Request::get("/"))?;
    }
    wait::until_true("all to be under way", Duration::from_secs(8), || {
        let active = inspect::stat(&rig.envoy, "^http.ingress.downstream_rq_active$")?;
        Ok(active == clients.len() as u64)
    })?;
    let killed = Instant::now();
    assert_eq!(killer.send(&Request::get("/").header(PANIC, "1"))?.status, 503);
    rig.store.thaw()?;
    let ended: Vec<(u16, Duration)> = thread::scope(|scope| {
        let finish = |mut client: Client| {
            scope.spawn(move || Ok::<_, anyhow::Error>((client.finish()?.status, killed.elapsed())))
        };
        let waiting: Vec<_> = clients.into_iter().map(finish).collect();
        // Envoy restarts a VM at most once per second, and answers with 503 until then.
        wait::until_true("a fresh VM", HELD, || {
            let status = rig.client()?.send(&Request::get("/"))?.status;
            assert!([200, 503].contains(&status), "{status}");
            Ok(inspect::stat(&rig.envoy, "^wasm.quotagate.vm_reload_success$")? == 1)
        })?;
        for _ in 0..CLIENTS {
            let sent = Instant::now();
            assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 200);
            assert!(sent.elapsed() < HELD, "held for {:?}", sent.elapsed());
        }
        let end =
            |thread: thread::ScopedJoinHandle<'_, Result<_>>| thread.join().expect("no panic");
        waiting.into_iter().map(end).collect::<Result<_>>()
    })?;
    let (went_on, lost): (Vec<_>, Vec<_>) =
        ended.into_iter().partition(|(status, _)| *status == 200);
    assert!(went_on.iter().all(|(_, after)| *after < HELD), "{went_on:?}");
    assert!(
        !lost.is_empty() && !went_on.is_empty(),
        "each worker needs some requests: {lost:?}, {went_on:?}"
    );
    assert!(
        lost.iter().all(|(status, after)| [503, 504].contains(status) && *after < ENDED),
        "{lost:?}"
    );
    assert_eq!(inspect::stat(&rig.envoy, "^wasm.quotagate.vm_reload_success$")?, 1);

    let mut client = rig.client()?;
    wait::until_true("the quota to be spent", SPENT, || {
        let status = client.send(&Request::get("/"))?.status;
        assert!([200, 429].contains(&status), "{status}");
        Ok(status == 429)
    })?;
    inspect::settled(&rig.redis, "per-caller", QUOTA)?;
    let admitted = rig.upstream.requests();
    assert!(admitted <= QUOTA, "{admitted} admitted");
    assert!(
        admitted + lost.len() as u64 >= QUOTA,
        "{admitted} admitted, {} lost their worker",
        lost.len()
    );
    Ok(())
}

#[test]
fn released_filter_does_not_know_the_panic_header() -> Result<()> {
    let holds = |file: &Path| -> Result<bool> {
        let module = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(module.windows(PANIC.len()).any(|bytes| bytes == PANIC.as_bytes()))
    };
    assert!(
        holds(&paths::panicking_filter())?,
        "the search must find the header in the test build"
    );
    assert!(!holds(&paths::filter())?);
    Ok(())
}
