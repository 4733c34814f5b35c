//! Bodies of waiting requests: no part of a body reaches the upstream before the filter decides.
//!
//! With `allow_on_headers_stop_iteration`, Envoy holds back only what the Wasm filter asks for.
//! Without it, Envoy holds back everything. The native module always asks for everything.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{self, EnvoyOptions, Form};
use quotagate_support::http::Request;
use quotagate_support::{http2, wait};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document, per_caller};

const QUOTA: u64 = 2;
const POSTS: usize = 40;

/// Sets the field of the Wasm plugin; `None` leaves it out.
fn stop_iteration(allowed: Option<bool>) -> impl FnOnce(EnvoyOptions) -> EnvoyOptions {
    move |options| {
        let Some(allowed) = allowed else { return options };
        options.edit(move |config: &mut Value| {
            envoy::plugin(config)?["allow_on_headers_stop_iteration"] = json!(allowed);
            Ok(())
        })
    }
}

fn count(statuses: &[u16], wanted: u16) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

fn no_body_overtakes_its_decision(allowed: Option<bool>) -> Result<()> {
    let mut rig = Rig::start_with(document(json!([per_caller(QUOTA)])), stop_iteration(allowed))?;
    let statuses = rig.statuses_together(&vec![Request::post("/orders", b"one more"); POSTS])?;
    let admitted = [count(&statuses, 200) as u64, rig.upstream.requests()];
    assert_eq!(admitted, [QUOTA; 2], "of {statuses:?}");
    assert_eq!(count(&statuses, 429), POSTS - 2, "of {statuses:?}");
    Ok(())
}

#[test]
fn parallel_posts_execute_no_more_than_the_quota() -> Result<()> {
    no_body_overtakes_its_decision(None)
}

#[test]
fn parallel_posts_execute_no_more_than_the_quota_with_stop_iteration() -> Result<()> {
    if !Form::Wasm.is_under_test("allow_on_headers_stop_iteration")? {
        return Ok(());
    }
    no_body_overtakes_its_decision(Some(true))
}

#[test]
fn body_larger_than_envoys_buffers_waits_and_passes() -> Result<()> {
    let wasm = Form::of_run()? == Form::Wasm;
    for allowed in [None, Some(true)].into_iter().filter(|allowed| wasm || allowed.is_none()) {
        let mut rig = Rig::start_with(document(json!([per_caller(1)])), stop_iteration(allowed))?;
        let upload = Request::post("/upload", &vec![b'a'; 8 << 20]);
        let mut client = rig.client()?;
        rig.freeze()?;
        let status = thread::scope(|scope| -> Result<u16> {
            // Envoy stops reading when its buffers are full, so sending blocks until the filter
            // decides.
            let sending = scope.spawn(|| client.send(&upload));
            wait::until_true("the body to fill Envoy's buffer", Duration::from_secs(30), || {
                Ok(inspect::stat(
                    &rig.envoy,
                    "^http.ingress.downstream_flow_control_paused_reading_total$",
                )? > 0)
            })?;
            rig.thaw()?;
            Ok(sending.join().expect("no panic")?.status)
        })?;
        assert_eq!(status, 200, "{allowed:?}");
    }
    Ok(())
}

#[test]
fn http2_client_sends_little_while_its_request_waits() -> Result<()> {
    let mut rig = Rig::start(document(json!([per_caller(1)])))?;
    let upload = Request::post("/upload", &vec![b'a'; 3 << 20]);
    let mut client = http2::Http2Client::connect(rig.envoy.port())?;
    rig.freeze()?;
    let (status, ahead) = thread::scope(|scope| -> Result<(u16, u64)> {
        let sending = scope.spawn(|| client.send(&upload));
        let received = || inspect::stat(&rig.envoy, "^http.ingress.downstream_cx_rx_bytes_total$");
        wait::until_true("the client's window to fill", Duration::from_secs(30), || {
            Ok(received()? > 60_000)
        })?;
        // The client sends one more window at once, because Envoy buffers that much.
        thread::sleep(Duration::from_millis(500));
        let ahead = received()?;
        rig.thaw()?;
        Ok((sending.join().expect("no panic")?.response.status, ahead))
    })?;
    assert_eq!(status, 200);
    assert!(ahead < 256 << 10, "{ahead} bytes");
    Ok(())
}
