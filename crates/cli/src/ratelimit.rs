//! `quotagate ratelimit`: the rate limit service as a process.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use quotagate_control::App;
use quotagate_protocol::{MAX_NAME, OnFailure, is_of_name};
use quotagate_quota::config::{Precision, Reach, RedisStore, StoreConfig};
use quotagate_ratelimit::domain::CountingOptions;
use quotagate_ratelimit::serve::{
    Listeners, RuleSource, ServiceOptions, serve as serve_rate_limits,
};
use quotagate_ratelimit::settings::{Remark, Settings, StoreText};
use quotagate_ratelimit::xds;
use quotagate_store::server::{ListenAddr, Listener, Tokens, raise_file_limit};
use quotagate_store::tls::{ServerTls, TlsFiles};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::Level;

use crate::serve::{bind, drain, host, prefix, runtime, signals, store_url, tokens, write_log};
use crate::values;

/// The port of operators, where commands look for the service.
const ADMIN_PORT: u16 = 9181;
/// The part of a quota that a service may admit by itself with `--on-failure local`.
const LOCAL_SHARE: f64 = 0.1;
/// How much of its recent traffic a lease holds.
const AHEAD: Duration = Duration::from_millis(100);
/// The most units of a lease.
const MAX_LEASE: NonZeroU64 = NonZeroU64::new(10_000).unwrap();

#[derive(clap::Args)]
pub struct RatelimitArgs {
    /// The folder with the rule files [default: from RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and
    /// RUNTIME_APPDIRECTORY]
    #[arg(long, value_name = "DIR", conflicts_with = "xds")]
    config: Option<PathBuf>,
    /// An xDS server with the rules: host:port [default: CONFIG_GRPC_XDS_SERVER_URL, if CONFIG_TYPE
    /// is GRPC_XDS_SOTW]
    #[arg(long, value_name = "ADDR", value_parser = xds_server)]
    xds: Option<String>,
    /// Follow published rules: in each domain of --config or --xds, those of `quotagate document
    /// publish` are in force while there are some
    #[arg(long, env = "QUOTAGATE_PUBLISHED")]
    published: bool,
    /// The certificate for TLS at --listen, in PEM, with those up to its authority. It is read
    /// again when it changes [default: GRPC_SERVER_TLS_CERT, if GRPC_SERVER_USE_TLS is true]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// The private key of --tls-cert, in PEM [default: GRPC_SERVER_TLS_KEY]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// The authorities of clients, which then need a certificate [default: GRPC_CLIENT_TLS_CACERT]
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<String>,
    /// The DNS name or IP address that the certificates of clients must have [default:
    /// GRPC_CLIENT_TLS_SAN]
    #[arg(long, value_name = "NAME")]
    tls_client_san: Option<String>,
    /// The address for Envoy's calls: host:port (port 0: any free one) or unix:/path.sock
    /// [default: from GRPC_HOST and GRPC_PORT, 0.0.0.0:8081]
    #[arg(long, value_name = "ADDR")]
    listen: Option<ListenAddr>,
    /// The address of /json and /healthcheck [default: from HOST and PORT, 0.0.0.0:8080]
    #[arg(long, value_name = "ADDR")]
    http: Option<ListenAddr>,
    /// The address of /rlconfig [default: from DEBUG_HOST and DEBUG_PORT, 0.0.0.0:6070]
    #[arg(long, value_name = "ADDR")]
    debug: Option<ListenAddr>,
    /// The address for operators: the live page at /, the admin API at /v1/, /healthz, /readyz,
    /// /metrics [default: 127.0.0.1:9181, or any free port if that is taken]
    #[arg(long, env = "QUOTAGATE_ADMIN", value_name = "ADDR")]
    admin: Option<ListenAddr>,
    /// A file with bearer tokens for operators, one per line [default: operators need none]
    #[arg(long, env = "QUOTAGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// A host name of the admin address, in addition to localhost and IP addresses; repeatable, or
    /// separated by commas
    #[arg(long, env = "QUOTAGATE_ADMIN_HOSTS", value_name = "NAME", value_delimiter = ',', value_parser = host)]
    admin_host: Vec<String>,
    /// The store of the counters, as for `quotagate serve` [default: from REDIS_URL and the other
    /// variables of Redis]
    // A string, so that no error of the argument parser shows the password in it.
    #[arg(long, env = "QUOTAGATE_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// A file with the password for the store URL, read for each connection
    #[arg(long, env = "QUOTAGATE_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The prefix of every key in Redis
    #[arg(long, env = "QUOTAGATE_PREFIX", default_value = "qg", value_parser = prefix)]
    prefix: String,
    /// The longest that a request waits for the store: 1ms to 60s
    #[arg(long, env = "QUOTAGATE_TIMEOUT", default_value = "100ms", value_name = "TIME", value_parser = timeout)]
    timeout: Duration,
    /// What happens to requests while the store fails
    #[arg(long, env = "QUOTAGATE_ON_FAILURE", default_value = "error", value_name = "WHAT")]
    on_failure: OnFailureArg,
    /// `exact`: every request is counted in the store. `lease`: out of units that the service
    /// prefetches. With the name of a domain or of a rule, for these alone: `shop=lease`,
    /// `shop/per-user=exact`; repeatable, or separated by commas [default: exact]
    #[arg(long, env = "QUOTAGATE_PRECISION", value_name = "[NAME=]HOW", value_delimiter = ',')]
    precision: Vec<PrecisionChoice>,
    /// Count refused requests too, as envoyproxy/ratelimit does; not where --precision says lease
    #[arg(long, env = "QUOTAGATE_COUNT_REFUSED")]
    count_refused: bool,
    /// Threads that answer calls, 1 to 64 [default: one per four processors, at least 1]
    #[arg(long, env = "QUOTAGATE_THREADS", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// How long to serve after SIGTERM while connections are asked to close: 0s to 1h
    #[arg(long, env = "QUOTAGATE_DRAIN", default_value = "5s", value_name = "TIME", value_parser = drain)]
    drain: Duration,
    /// The log level on standard error: error, warn, info, debug, trace [default: from LOG_LEVEL,
    /// info]
    #[arg(long, env = "QUOTAGATE_LOG", value_name = "LEVEL")]
    log: Option<Level>,
}

/// What happens to requests while the store fails.
#[derive(Clone, Copy, ValueEnum)]
enum OnFailureArg {
    /// They get an error, and failure_mode_deny of Envoy's filter decides
    Error,
    /// They pass, uncounted
    Allow,
    /// Each service counts for itself, against a tenth of each limit
    Local,
}

/// How the requests of some rules are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PrecisionChoice {
    /// A domain, or a domain and a policy, such as `shop/per-user`. `None`: all others.
    name: Option<String>,
    how: Precision,
}

impl FromStr for PrecisionChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The name of a policy may hold `=`.
        let (name, how) = match text.rsplit_once('=') {
            Some((name, how)) => (Some(name), how),
            None => (None, text),
        };
        let how = match how {
            "exact" => Precision::Exact,
            "lease" => Precision::Lease { ahead: AHEAD, max: MAX_LEASE },
            _ => {
                return Err("must be exact or lease, or end with one of them after the name of a \
                            domain or a rule: shop=lease, shop/per-user=exact"
                    .to_owned());
            }
        };
        if let Some(name) = name
            && (name.is_empty() || name.len() > 2 * MAX_NAME + 1 || !name.bytes().all(is_of_name))
        {
            return Err(format!(
                "{name:?} is no name: write a domain such as shop, or a domain and a policy such as \
                 shop/per-user, as `quotagate dial list` prints them"
            ));
        }
        Ok(Self { name: name.map(str::to_owned), how })
    }
}

/// The precision of all rules, and those of single domains and rules.
///
/// # Errors
/// When a name is given twice, or one is given for a lease beside `--count-refused`.
fn precisions(
    choices: Vec<PrecisionChoice>,
    count_refused: bool,
) -> Result<(Precision, BTreeMap<String, Precision>), String> {
    let mut default = None;
    let mut named = BTreeMap::new();
    for PrecisionChoice { name, how } in choices {
        let of = name.as_ref().map_or_else(String::new, |name| format!(" for {name:?}"));
        if count_refused && how != Precision::Exact {
            return Err(format!(
                "--count-refused needs --precision exact{of}: a lease does not see what the store \
                 refuses. Leave one of the two out"
            ));
        }
        let earlier = match name {
            Some(name) => named.insert(name, how),
            None => default.replace(how),
        };
        if earlier.is_some() {
            return Err(format!("--precision is given twice{of}: leave one of them out"));
        }
    }
    Ok((default.unwrap_or(Precision::Exact), named))
}

impl RatelimitArgs {
    /// The flags that say what variables say, as those variables.
    fn as_variables(&self) -> Vec<(String, String)> {
        let on = |is_given: bool, value: &str| is_given.then(|| value.to_owned());
        let config_type = match (&self.config, &self.xds) {
            (Some(_), _) => Some("FILE".to_owned()),
            (None, xds) => on(xds.is_some(), "GRPC_XDS_SOTW"),
        };
        let variables = [
            ("CONFIG_TYPE", config_type),
            ("CONFIG_GRPC_XDS_SERVER_URL", self.xds.clone()),
            ("GRPC_SERVER_USE_TLS", on(self.tls_cert.is_some(), "true")),
            ("GRPC_SERVER_TLS_CERT", self.tls_cert.clone()),
            ("GRPC_SERVER_TLS_KEY", self.tls_key.clone()),
            ("GRPC_CLIENT_TLS_CACERT", self.tls_client_ca.clone()),
            ("GRPC_CLIENT_TLS_SAN", self.tls_client_san.clone()),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn xds_server(text: &str) -> Result<String, &'static str> {
    if xds::is_server(text) {
        Ok(text.to_owned())
    } else {
        Err("must be host:port, such as envoy-gateway:18001")
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    values::duration(text, Duration::from_millis(1), Duration::from_secs(60))
}

/// Runs the service until SIGTERM, or until SIGINT without draining. A second signal ends it at
/// once.
///
/// # Errors
/// What is wrong with a flag or a variable, or a failed system call, without credentials.
pub fn run(args: RatelimitArgs) -> Result<(), String> {
    let lines =
        |remarks: &[Remark]| remarks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    // No setting is other than UTF-8.
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = variables.chain(args.as_variables());
    let (settings, remarks) = Settings::read(variables).map_err(|faults| lines(&faults))?;
    let level = args.log.unwrap_or_else(|| settings.log.parse().unwrap_or(Level::INFO));
    write_log(level, settings.log_format);
    remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    let runtime = runtime(args.threads).map_err(|error| format!("cannot start: {error}"))?;
    let done = runtime.block_on(serve(args, settings));
    // A name lookup that hangs must not delay the end.
    runtime.shutdown_background();
    done
}

async fn serve(args: RatelimitArgs, settings: Settings) -> Result<(), String> {
    let (precision, precisions) = precisions(args.precision, args.count_refused)?;
    let url = match (&args.store, &settings.store) {
        (Some(url), _) => store_url(url, args.password_file.as_deref())?,
        (None, Some(url)) => store_url(&url.0, args.password_file.as_deref())
            .map_err(|error| error.replacen("--store", "REDIS_URL", 1))?,
        (None, None) => {
            return Err("names no Redis: set REDIS_URL, or --store redis://HOST:PORT".to_owned());
        }
    };
    let url = match &settings.sentinel_login {
        Some((user, StoreText(password))) if args.store.is_none() => {
            url.with_sentinel_login(user.as_deref(), password)
        }
        _ => url,
    };
    if settings.grpc_tls.is_none()
        && (args.tls_client_ca.is_some() || args.tls_client_san.is_some())
    {
        let flags = "--tls-client-ca and --tls-client-san need TLS";
        return Err(format!("{flags}: give --tls-cert and --tls-key, too"));
    }
    if let Err(error) = raise_file_limit() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let tokens = args.admin_token_file.as_deref().map(Tokens::from_file).transpose();
    let tokens = tokens.map_err(|error| format!("--admin-token-file: {error}"))?;
    let tls = settings.grpc_tls.map(ServerTls::open).transpose();
    let tls = tls.map_err(|fault| format!("GRPC_SERVER_TLS_CERT: {fault}"))?;
    let protocol = if tls.is_some() { "gRPC over TLS" } else { "gRPC" };
    let mut rules = settings.rules;
    match &mut rules {
        RuleSource::Folder(folder) => {
            if let Some(path) = args.config {
                (folder.path, folder.siblings) = (path, false);
            }
        }
        RuleSource::Xds(options) => {
            let checked = options.tls.as_ref().map_or(Ok(()), TlsFiles::check_client);
            checked.map_err(|fault| format!("CONFIG_GRPC_XDS_SERVER_USE_TLS: {fault}"))?;
        }
    }
    let grpc = address(args.listen, &settings.grpc)?;
    let http = address(args.http, &settings.http)?;
    let is_debug_given = args.debug.is_some();
    let debug = address(args.debug, &settings.debug)?;
    let metrics =
        settings.metrics.map(|(text, path)| Ok::<_, String>((address(None, &text)?, path)));
    let metrics = metrics.transpose()?;
    let admin = bind_admin(args.admin.as_ref()).await?;
    let (admin_address, source, shown) =
        (admin.address().clone(), rules.to_string(), url.to_string());
    let listen = async {
        let grpc = bind_shared("--listen", &grpc).await?.tls(tls).age(settings.grpc_age);
        let http = bind_shared("--http", &http).await?;
        let debug = match bind("--debug", &debug).await {
            Err(fault) if !is_debug_given => beside(fault),
            bound => Some(bound?),
        };
        let metrics = match metrics {
            Some((address, path)) => match bind("PROMETHEUS_ADDR", &address).await {
                Ok(listener) => Some((listener, path)),
                Err(fault) => beside(fault),
            },
            None => None,
        };
        let debug_address =
            debug.as_ref().map_or("nowhere".to_owned(), |of| of.address().to_string());
        tracing::info!(
            "listening on {} ({protocol}), {} (HTTP) and {debug_address} (debug), admin on \
             {admin_address}, rules from {source}, store {shown}",
            grpc.address(),
            http.address(),
        );
        Ok::<_, String>(Listeners { grpc, http, debug, metrics })
    };
    let hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot start: {error}"))?;
    let (end, ending) = oneshot::channel();
    let signals = signals(args.drain, end)?;
    let store = quotagate_store::open(&url, &args.prefix);
    let files = tokens.iter().cloned().collect();
    let app = App::new(store, None).admin_tokens(tokens).admin_hosts(args.admin_host);
    let counting = CountingOptions {
        store: StoreConfig {
            reach: Reach::Redis(RedisStore {
                url: url.to_string().into(),
                password_file: None,
                prefix: args.prefix.as_str().into(),
            }),
            timeout: args.timeout,
            on_failure: match args.on_failure {
                OnFailureArg::Error => OnFailure::Deny,
                OnFailureArg::Allow => OnFailure::Allow,
                OnFailureArg::Local => OnFailure::Local,
            },
            local_share: LOCAL_SHARE,
        },
        precision,
        precisions,
        count_refused: args.count_refused,
    };
    let options = ServiceOptions {
        rules,
        follows_published: args.published,
        counting,
        answers: settings.answers,
        health: settings.health,
        waits_for_rules: settings.waits_for_rules,
    };
    if let (RuleSource::Xds(_), true) = (&options.rules, options.waits_for_rules) {
        tracing::info!(
            "waiting for the first rules from {}, then listening for callers \
             (FORCE_START_WITHOUT_INITIAL_CONFIG=true: at once), admin on {}",
            options.rules,
            admin.address()
        );
    }
    let ended = async { ending.await.unwrap_or_default() };
    let server = serve_rate_limits(admin, listen, options, app, ended);
    tokio::select! {
        served = server => {
            served?;
            tracing::info!("stopped");
        }
        () = tokens::keep_read(files, hangup) => {}
        () = signals => tracing::warn!("stopped at once after a second signal"),
    }
    Ok(())
}

/// Binds an address that several services of a machine may share, as those of the original do: one
/// takes over from another without a gap.
async fn bind_shared(flag: &str, address: &ListenAddr) -> Result<Listener, String> {
    let cannot = |error| format!("{flag}: cannot listen on {address}: {error}");
    Listener::bind_shared(address).await.map_err(cannot)
}

/// Goes on without an address that only operators use, as the original does.
fn beside<T>(fault: String) -> Option<T> {
    tracing::warn!("{fault}: the service goes on without it");
    None
}

/// Binds the address of operators. Without one, a second service on a machine takes a free port.
async fn bind_admin(given: Option<&ListenAddr>) -> Result<Listener, String> {
    if let Some(address) = given {
        return bind("--admin", address).await;
    }
    let mut at = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
    loop {
        let address = ListenAddr::Tcp(at);
        match Listener::bind(&address).await {
            Ok(listener) => {
                if at.port() != ADMIN_PORT {
                    tracing::warn!(
                        "--admin: port {ADMIN_PORT} is taken, so operators are served on {}: choose an \
                         address for commands to find",
                        listener.address()
                    );
                }
                return Ok(listener);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse && at.port() != 0 => at.set_port(0),
            // A machine with IPv6 alone.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && at.is_ipv4() => {
                at.set_ip(Ipv6Addr::LOCALHOST.into());
            }
            Err(error) => return Err(format!("--admin: cannot listen on {address}: {error}")),
        }
    }
}

/// The address of a flag, or else of the variables.
fn address(flag: Option<ListenAddr>, variables: &str) -> Result<ListenAddr, String> {
    match flag {
        Some(address) => Ok(address),
        None => variables.parse().map_err(|error| format!("{variables:?} {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Precision = Precision::Lease { ahead: AHEAD, max: MAX_LEASE };

    fn read(
        text: &str,
        count_refused: bool,
    ) -> Result<(Precision, BTreeMap<String, Precision>), String> {
        let choices: Result<Vec<PrecisionChoice>, String> =
            text.split_terminator(',').map(str::parse).collect();
        precisions(choices?, count_refused)
    }

    #[test]
    fn precision_is_chosen_for_all_a_domain_or_a_rule() {
        assert_eq!(read("", false), Ok((Precision::Exact, BTreeMap::new())));
        let text = "lease,shop=exact,shop/message_type=marketing/to_number=lease";
        let named = [
            ("shop".to_owned(), Precision::Exact),
            ("shop/message_type=marketing/to_number".to_owned(), LEASE),
        ];
        assert_eq!(read(text, false), Ok((LEASE, named.into())));
        let (domain, policy) = ("d".repeat(MAX_NAME), "p".repeat(MAX_NAME));
        assert!(read(&format!("{domain}/{policy}=exact"), false).is_ok());
        assert!(read(&format!("{domain}/{policy}p=exact"), false).is_err());
        for (text, part) in [
            ("leas", "must be exact or lease"),
            ("shop=leas", "must be exact or lease"),
            ("shop", "must be exact or lease"),
            ("=lease", "\"\" is no name"),
            ("my shop=lease", "\"my shop\" is no name"),
            ("exact,lease", "--precision is given twice: leave one"),
            ("shop=exact,shop=exact", "--precision is given twice for \"shop\""),
        ] {
            let error = read(text, false).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn refused_requests_count_only_where_no_lease_is_held() {
        assert!(read("exact,shop=exact", true).is_ok());
        for (text, part) in [
            ("lease", "--count-refused needs --precision exact: a lease"),
            ("shop/a=lease", "--precision exact for \"shop/a\": a lease"),
        ] {
            let error = read(text, true).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
