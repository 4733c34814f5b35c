//! `quotagate serve`: the store as a process.

mod operators;
pub(crate) mod tokens;

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use quotagate_control::{App, DocumentFolder, FileDocument, serve as serve_store};
use quotagate_quota::duration;
use quotagate_ratelimit::published::read_published;
use quotagate_ratelimit::settings::LogFormat;
use quotagate_store::secret::PasswordFile;
use quotagate_store::server::{ListenAddr, Listener, Tokens, raise_file_limit};
use quotagate_store::url::StoreUrl;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::operators::OperatorArgs;
use crate::check::to_publish_of;
use crate::values;

#[derive(clap::Args)]
pub struct ServeArgs {
    /// The address for Envoy's calls: host:port (port 0: any free one) or unix:/path.sock
    #[arg(long, env = "QUOTAGATE_LISTEN", default_value = "127.0.0.1:9180", value_name = "ADDR")]
    listen: ListenAddr,
    /// The address for operators: the live page at /, the admin API at /v1/, /healthz, /readyz,
    /// /metrics
    #[arg(long, env = "QUOTAGATE_ADMIN", default_value = "127.0.0.1:9181", value_name = "ADDR")]
    admin: ListenAddr,
    /// The prefix of every key in Redis
    #[arg(long, env = "QUOTAGATE_PREFIX", default_value = "qg", value_parser = prefix)]
    prefix: String,
    /// A file with bearer tokens for Envoy, one per line; a call needs one of them [default: calls
    /// need none]
    #[arg(long, env = "QUOTAGATE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with tokens for operators, one per line: NAME ROLE DOMAINS SHA256 of `quotagate token
    /// new`, or a bearer token that may do everything [default: those of --token-file]
    #[arg(long, env = "QUOTAGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    #[command(flatten)]
    operators: OperatorArgs,
    /// A host name of the admin address, in addition to localhost and IP addresses; repeatable, or
    /// separated by commas
    #[arg(long, env = "QUOTAGATE_ADMIN_HOSTS", value_name = "NAME", value_delimiter = ',', value_parser = host)]
    admin_host: Vec<String>,
    /// A folder with policy documents, and rule files of the rate limit service, *.yaml, *.yml or
    /// *.json: each is published for its domain when it changes, and again if the store has lost it
    #[arg(long, env = "QUOTAGATE_DOCUMENTS", value_name = "DIR")]
    documents: Option<PathBuf>,
    /// The name, such as production, that the live page shows in its title, its colour and every
    /// confirmation
    #[arg(long, env = "QUOTAGATE_ENVIRONMENT", value_name = "NAME", value_parser = environment)]
    environment: Option<String>,
    /// The store of the counters: memory:, redis://[user:password@]host:port/db, rediss:// (TLS),
    /// redis+unix:///path.sock, redis-cluster://h1:p1,h2:p2, rediss-cluster://,
    /// redis-sentinel://h1,h2/mymaster; parameters after a ?: client_cert, client_key, ca_cert,
    /// server_name, sentinel_user, sentinel_password_file
    // A string, so that no error of the argument parser shows the password in it.
    #[arg(
        long,
        env = "QUOTAGATE_STORE",
        default_value = "memory:",
        value_name = "URL",
        hide_env_values = true
    )]
    store: String,
    /// A file with the password for the store URL, read for each connection
    #[arg(long, env = "QUOTAGATE_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Threads that serve calls, 1 to 64 [default: one per four processors, at least 1]
    #[arg(long, env = "QUOTAGATE_THREADS", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// How long to serve after SIGTERM while connections are asked to close: 0s to 1h
    #[arg(long, env = "QUOTAGATE_DRAIN", default_value = "5s", value_name = "TIME", value_parser = drain)]
    drain: Duration,
    /// The log level on standard error: error, warn, info, debug, trace
    #[arg(long, env = "QUOTAGATE_LOG", default_value = "info", value_name = "LEVEL")]
    log: Level,
}

pub(crate) fn prefix(text: &str) -> Result<String, &'static str> {
    if quotagate_store::valid_prefix(text) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    }
}

pub(crate) fn host(text: &str) -> Result<String, &'static str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=253).contains(&text.len()) && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("must be a host name without a port, such as store.example.com")
    }
}

fn environment(text: &str) -> Result<String, &'static str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=32).contains(&text.len()) && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 32 of the characters A-Z a-z 0-9 . _ -")
    }
}

pub(crate) fn drain(text: &str) -> Result<Duration, String> {
    values::duration(text, Duration::ZERO, Duration::from_secs(3600))
}

/// Runs the store until SIGTERM, or until SIGINT without draining. A second signal ends it at once.
///
/// # Errors
/// One sentence about a wrong flag or a failed system call, without credentials.
pub fn run(args: ServeArgs) -> Result<(), String> {
    write_log(args.log, LogFormat::Text);
    let runtime = runtime(args.threads).map_err(|error| format!("cannot start: {error}"))?;
    let done = runtime.block_on(serve(args));
    // A name lookup that hangs must not delay the end.
    runtime.shutdown_background();
    done
}

/// Writes the log to standard error, from this level on.
pub(crate) fn write_log(level: Level, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_max_level(level);
    match format {
        LogFormat::Text => log.finish().with(log_filter(level)).init(),
        LogFormat::Json => log.json().finish().with(log_filter(level)).init(),
    }
}

/// What is written at a level. At `debug`, HTTP libraries write several lines for each call, which
/// nobody wants who looks for a reason of the service's: only `trace` shows them.
fn log_filter(level: Level) -> Targets {
    let of_others = if level == Level::TRACE { level } else { level.min(Level::INFO) };
    Targets::new().with_default(of_others).with_target("quotagate", level)
}

/// A call is cheapest with one thread, since nothing moves between threads. One thread serves some
/// thousand calls per second, each with many requests, and an Envoy on the same machine needs the
/// other processors more.
pub(crate) fn runtime(threads: Option<u8>) -> io::Result<Runtime> {
    let threads = threads.map_or_else(
        || available_parallelism().map_or(1, |processors| (processors.get() / 4).max(1)),
        usize::from,
    );
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build()
}

/// The store URL, with its password.
pub(crate) fn store_url(store: &str, password_file: Option<&Path>) -> Result<StoreUrl, String> {
    let url: StoreUrl = store.parse().map_err(|error| format!("--store: {error}"))?;
    url.read_files().map_err(|error| format!("--store: {error}"))?;
    let Some(file) = password_file else {
        if url.holds_password() && env::args_os().any(|argument| shows(&argument, store)) {
            tracing::warn!(
                "every user of this machine can read the password on the command line: put the URL into \
                 QUOTAGATE_STORE, or the password into a file and pass that with --password-file"
            );
        }
        return Ok(url);
    };
    let password = PasswordFile::open(file).map_err(|error| format!("--password-file: {error}"))?;
    url.with_password_file(password).map_err(|error| format!("--password-file: {error}"))
}

/// Whether this argument ends with that value.
fn shows(argument: &OsStr, value: &str) -> bool {
    argument.to_str().is_some_and(|argument| argument.ends_with(value))
}

/// Binds the address of a flag.
///
/// # Errors
/// Why that is not possible.
pub(crate) async fn bind(flag: &str, address: &ListenAddr) -> Result<Listener, String> {
    let cannot = |error| format!("{flag}: cannot listen on {address}: {error}");
    Listener::bind(address).await.map_err(cannot)
}

/// Waits for two signals. With the first, tells `end` how long to drain: `drain` after SIGTERM.
///
/// # Errors
/// When the system gives no signals.
pub(crate) fn signals(
    drain: Duration,
    end: oneshot::Sender<Duration>,
) -> Result<impl Future<Output = ()>, String> {
    let cannot = |error| format!("cannot start: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    Ok(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => drain,
                // Ctrl-C: an operator is waiting.
                _ = interrupt.recv() => Duration::ZERO,
            }
        };
        let drain = next().await;
        tracing::info!(
            "stopping: serving for another {}, then answering accepted calls",
            duration::format(drain)
        );
        // The receiver exists, since the server is running.
        let _ = end.send(drain);
        next().await;
    })
}

/// The documents of a file, without warnings: nobody waits for them here.
fn documents(name: &str, text: Vec<u8>) -> Result<Vec<FileDocument>, Vec<String>> {
    Ok(to_publish_of(name, text)?.0)
}

async fn serve(args: ServeArgs) -> Result<(), String> {
    let url = store_url(&args.store, args.password_file.as_deref())?;
    if let Err(error) = raise_file_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let tokens = args.token_file.as_deref().map(Tokens::from_file).transpose();
    let tokens = tokens.map_err(|error| format!("--token-file: {error}"))?;
    let admin_tokens = args.admin_token_file.as_deref().map(Tokens::from_file).transpose();
    let admin_tokens = admin_tokens.map_err(|error| format!("--admin-token-file: {error}"))?;
    let files: Vec<Tokens> = [&tokens, &admin_tokens].into_iter().flatten().cloned().collect();
    let calls = bind("--listen", &args.listen).await?;
    let admin = bind("--admin", &args.admin).await?;
    let hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot start: {error}"))?;
    let (end, ending) = oneshot::channel();
    let signals = signals(args.drain, end)?;
    tracing::info!("listening on {}, admin on {}, store {url}", calls.address(), admin.address());
    let store = quotagate_store::open(&url, &args.prefix);
    let app = App::new(store, tokens).admin_tokens(admin_tokens).admin_hosts(args.admin_host);
    let folder = args.documents.map(|path| DocumentFolder { path, read: documents });
    let app = args.operators.apply(app)?.environment(args.environment).documents(folder);
    let app = app.rules(read_published);
    let server = serve_store(calls, admin, app, async { ending.await.unwrap_or_default() });
    tokio::select! {
        () = server => tracing::info!("stopped"),
        () = tokens::keep_read(files, hangup) => {}
        () = signals => tracing::warn!("stopped at once after a second signal"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_debug_has_no_frames_of_http() {
        let [own, of_others] = ["quotagate_store::server", "h2::codec::framed_read"];
        let written =
            |level: Level, target: &str, of: Level| log_filter(level).would_enable(target, &of);
        assert!(written(Level::DEBUG, own, Level::DEBUG));
        assert!(!written(Level::DEBUG, of_others, Level::DEBUG));
        assert!(written(Level::DEBUG, of_others, Level::INFO));
        assert!(written(Level::TRACE, of_others, Level::TRACE));
        assert!(
            !written(Level::WARN, own, Level::INFO)
                && !written(Level::WARN, of_others, Level::INFO)
        );
    }
}
