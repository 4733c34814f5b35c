//! `cargo xtask demo`: the store, a sample upstream and Envoy with the filter, until Ctrl-C. With
//! `--native`, Envoy loads the native module, and there is no store.

mod burst;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use quotagate_support::{
    envoy::{Envoy, EnvoyOptions, Form},
    jwt, ports,
    redis::Redis,
    store::{StoreOptions, StoreProcess},
    tools,
    upstream::Upstream,
    wait,
};
use quotagate_workspace::task;

const ADMIN_PORT: u16 = 9901;
const STORE_PORT: u16 = 9180;
const STORE_ADMIN_PORT: u16 = 9181;
/// How often the parts are checked.
const LOOK: Duration = Duration::from_secs(1);

/// All running parts, dropped in this order, so that Envoy goes first.
struct Parts {
    envoy: Envoy,
    /// The Wasm filter needs one.
    store: Option<StoreProcess>,
    _upstream: Upstream,
    redis: Option<Redis>,
}

/// Run the store, a sample upstream and Envoy with the filter
#[derive(Debug, Parser)]
#[command(name = "cargo xtask demo", version)]
struct Cli {
    /// Send a scripted burst, print the responses, and fail if one is wrong
    #[arg(long)]
    once: bool,
    /// Load the native module into Envoy: no store
    #[arg(long)]
    native: bool,
    /// The port that Envoy listens on
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

fn main() -> ExitCode {
    let Cli { once, native, port } = Cli::parse();
    let form = if native { Form::Native } else { Form::Wasm };
    match run(form, port, once) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(form: Form, port: u16, once: bool) -> Result<()> {
    if !ports::is_free(port) {
        bail!("{}", port_taken(port));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))
        .context("cannot listen for Ctrl-C")?;
    let mut parts = start(form, port, tools::redis_server().is_ok())?;
    let outcome = if once { burst::run(port) } else { stay(&mut parts, port, &interrupted) };
    let stopped = parts.stop();
    outcome.and(stopped)
}

fn start(form: Form, port: u16, with_redis: bool) -> Result<Parts> {
    task::step("demo: starting the parts");
    let redis = if with_redis {
        let redis = Redis::start()?;
        task::note(&format!("Redis, throw-away: {}", redis.url()));
        Some(redis)
    } else {
        task::note(
            "no redis-server here: counters are in the memory of one process, and lost with it",
        );
        None
    };
    let url = redis.as_ref().map_or_else(|| "memory:".to_owned(), Redis::url);
    let store = match form {
        Form::Wasm => Some(start_store(&url)?),
        Form::Native => None,
    };
    let upstream = Upstream::start()?;
    task::note(&format!("sample upstream: http://127.0.0.1:{}", upstream.port()));
    let store_port = store.as_ref().map_or(0, StoreProcess::port);
    let mut options = EnvoyOptions::new(upstream.port(), store_port).form(form).redis(&url);
    options.port = port;
    options.admin_port = usual_or_free(ADMIN_PORT, "Envoy's admin")?;
    let envoy = Envoy::start(&options)?;
    task::note(&format!("Envoy: http://127.0.0.1:{port} (admin {})", envoy.admin_port()));
    Ok(Parts { envoy, store, _upstream: upstream, redis })
}

fn start_store(url: &str) -> Result<StoreProcess> {
    let (listen, admin) =
        (usual_or_free(STORE_PORT, "the store")?, usual_or_free(STORE_ADMIN_PORT, "its admin")?);
    let options = StoreOptions::new(url).listen(&format!("127.0.0.1:{listen}"));
    let store = StoreProcess::start_with(&options.admin(&format!("127.0.0.1:{admin}")))?;
    task::note(&format!("store: http://127.0.0.1:{} (admin {})", store.port(), store.admin_port()));
    Ok(store)
}

impl Parts {
    fn stop(mut self) -> Result<()> {
        task::step("demo: stopping the parts");
        self.envoy.stop()?;
        self.store.as_mut().map_or(Ok(()), StoreProcess::stop)?;
        self.redis.as_mut().map_or(Ok(()), Redis::stop)
    }
}

/// Until Ctrl-C, or until a part ends by itself.
fn stay(parts: &mut Parts, port: u16, interrupted: &AtomicBool) -> Result<()> {
    let metrics = match &parts.store {
        Some(store) => format!("{}/metrics", store.admin_port()),
        None => format!("{}/stats?filter=quotagate", parts.envoy.admin_port()),
    };
    println!("\n{}\n", hints(port, &metrics, &jwt::token("alice")?));
    while !interrupted.load(Ordering::SeqCst) {
        let waited = wait::until_true("Ctrl-C", LOOK, || Ok(interrupted.load(Ordering::SeqCst)));
        // Ctrl-C in a terminal reaches every part as well, so a part that ends now did not fail.
        if waited.is_err() {
            ended_by_itself(parts, interrupted)?;
        }
    }
    Ok(())
}

fn ended_by_itself(parts: &mut Parts, interrupted: &AtomicBool) -> Result<()> {
    let checked =
        parts.envoy.check().and_then(|()| parts.store.as_mut().map_or(Ok(()), StoreProcess::check));
    if interrupted.load(Ordering::SeqCst) { Ok(()) } else { checked }
}

/// The usual port, or a free one if it is taken.
fn usual_or_free(usual: u16, whose: &str) -> Result<u16> {
    if ports::is_free(usual) {
        return Ok(usual);
    }
    let other = ports::free()?;
    task::note(&format!("port {usual} is taken: {whose} uses {other}"));
    Ok(other)
}

fn port_taken(port: u16) -> String {
    format!(
        "port {port} is taken by another program: stop that one, or choose another port with `cargo xtask demo \
         --port {}`",
        port.checked_add(1).unwrap_or(10_000)
    )
}

fn hints(port: u16, metrics: &str, token: &str) -> String {
    format!(
        "Each caller has 5 requests per minute. Try:\n\n  \
         for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:{port}/; done\n  \
         curl -i -H 'authorization: Bearer {token}' http://127.0.0.1:{port}/\n  \
         curl -s 'http://127.0.0.1:{metrics}'\n\n\
         The first command is you by your address, the second alice by her token, the third what was counted.\n\
         Ctrl-C stops everything."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_port_error_is_one_sentence_with_a_remedy() {
        assert!(port_taken(10_000).contains("--port 10001"));
        assert!(port_taken(u16::MAX).contains("--port 10000"));
    }

    #[test]
    fn there_are_three_commands_to_try() {
        let text = hints(1, "2/metrics", "t");
        assert_eq!(text.matches("curl -").count(), 3);
        assert!(text.contains("%{http_code}\\n") && text.contains("Bearer t"));
    }

    #[test]
    fn taken_port_is_replaced_by_a_free_one() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert_ne!(usual_or_free(taken, "a test").unwrap(), taken);
    }
}
