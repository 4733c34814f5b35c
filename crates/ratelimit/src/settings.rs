//! The settings of envoyproxy/ratelimit, which come from environment variables.
//!
//! | part | does |
//! | --- | --- |
//! | `table` | what becomes of each variable |
//! | `reader` | reads booleans, durations and numbers as Go does |
//! | `redis` | makes a store URL of the variables of Redis |
//! | `xds` | reads the variables of xDS |

mod reader;
mod redis;
mod table;
#[cfg(test)]
mod tests;
mod xds;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use quotagate_store::server::ConnectionAge;
use quotagate_store::tls::TlsFiles;

use self::reader::{VariableReader, boolean};
use self::table::{Fate, VARIABLES};
use crate::files::RuleFolder;
use crate::headers::HeaderNames;
use crate::health::HealthNeeds;
use crate::rules::SharedDomains;
use crate::serve::RuleSource;
use crate::service::{AnswerOptions, NEAR_LIMIT};

/// The age at which connections are asked to close, and the time that they then have.
const AGE: ConnectionAge =
    ConnectionAge { most: Duration::from_secs(24 * 60 * 60), grace: Duration::from_secs(60 * 60) };

/// The settings of a service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where Envoy calls: `host:port`, or `unix:` and a path.
    pub grpc: String,
    /// The files for TLS of that address; `None` is without TLS.
    pub grpc_tls: Option<TlsFiles>,
    /// How long a connection to it may exist; `None` is for ever.
    pub grpc_age: Option<ConnectionAge>,
    /// Where `/json` and `/healthcheck` are.
    pub http: String,
    /// Where `/rlconfig` is.
    pub debug: String,
    /// Where Prometheus scrapes, and the path.
    pub metrics: Option<(String, String)>,
    /// Where rules come from.
    pub rules: RuleSource,
    /// What a healthy service needs.
    pub health: HealthNeeds,
    /// Whether it listens only when its source has said its rules.
    pub waits_for_rules: bool,
    /// What answers contain.
    pub answers: AnswerOptions,
    /// The URL of the store; `None` if no variable of Redis is set.
    pub store: Option<StoreText>,
    /// The user, if there is one, and the password for sentinels.
    pub sentinel_login: Option<(Option<String>, StoreText)>,
    /// The level of the log, as `tracing` calls it.
    pub log: &'static str,
    /// How the log is written.
    pub log_format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// As text.
    #[default]
    Text,
    /// Each line is an object of JSON.
    Json,
}

/// A text that may hold a password, such as a store URL, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreText(pub String);

impl fmt::Debug for StoreText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreText(..)")
    }
}

/// A remark on a variable: what is wrong with it, or what it does not do here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The variable.
    pub variable: String,
    /// What to know, and what to do. It never holds the value of a secret.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.text)
    }
}

impl Settings {
    /// Reads the settings from environment variables. An empty variable counts as absent. Returns
    /// what set variables do not do here, too.
    ///
    /// ```
    /// use quotagate_ratelimit::settings::Settings;
    ///
    /// let variables = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")];
    /// let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    /// let (settings, remarks) = Settings::read(variables).unwrap();
    /// assert_eq!(settings.store.unwrap().0, "redis://redis:6379");
    /// assert!(remarks.is_empty());
    /// ```
    ///
    /// # Errors
    /// All variables that are wrong.
    pub fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<Remark>), Vec<Remark>> {
        let set: BTreeMap<String, String> =
            variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let remarks = remarks(&set);
        let mut reader = VariableReader::new(&set);
        let settings = Self::of(&mut reader);
        reader.finish().map(|()| (settings, remarks))
    }

    fn of(reader: &mut VariableReader<'_>) -> Self {
        reader.refuse();
        let folder = || {
            let part = |name, default| reader.text(name, default);
            let root = PathBuf::from(part("RUNTIME_ROOT", "/srv/runtime_data/current"));
            // Go joins an absolute path like another one.
            let below = |text: &'_ str| text.trim_start_matches('/').to_owned();
            let app = part("RUNTIME_APPDIRECTORY", "config");
            root.join(below(part("RUNTIME_SUBDIRECTORY", ""))).join(below(app))
        };
        let path = folder();
        let siblings =
            reader.given("RUNTIME_WATCH_ROOT").is_none() || reader.boolean("RUNTIME_WATCH_ROOT");
        let shared = match reader.boolean("MERGE_DOMAIN_CONFIG") {
            true => SharedDomains::Merge,
            false => SharedDomains::Refuse,
        };
        let ignores_dot_files = reader.boolean("RUNTIME_IGNOREDOTFILES");
        let grpc = match reader.text("GRPC_UDS", "") {
            "" => reader.address("GRPC_HOST", "GRPC_PORT", 8081),
            path => format!("unix:{path}"),
        };
        let grpc_tls = reader.boolean("GRPC_SERVER_USE_TLS").then(|| {
            let certificate = "GRPC_SERVER_TLS_CERT";
            let names = [
                certificate,
                "GRPC_SERVER_TLS_KEY",
                "GRPC_CLIENT_TLS_CACERT",
                "GRPC_CLIENT_TLS_SAN",
            ];
            let files = reader.tls(names);
            if names.iter().take(2).all(|name| reader.given(name).is_none()) {
                reader.fault(certificate, "is required with TLS: name the certificate");
            }
            if files.peer.is_some() && files.authority.is_none() {
                let text = "is required beside GRPC_CLIENT_TLS_SAN: name the authority of clients";
                reader.fault("GRPC_CLIENT_TLS_CACERT", text);
            }
            files
        });
        let age = ConnectionAge {
            most: reader.duration("GRPC_MAX_CONNECTION_AGE", AGE.most),
            grace: reader.duration("GRPC_MAX_CONNECTION_AGE_GRACE", AGE.grace),
        };
        let xds = xds::options(reader, shared);
        let store = redis::store(reader);
        let starts_empty = reader.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG");
        let config_types = [("FILE", false), ("GRPC_XDS_SOTW", true)];
        let follows_server = reader.one_of("CONFIG_TYPE", &config_types);
        Self {
            grpc,
            grpc_tls,
            grpc_age: (age.most > Duration::ZERO).then_some(age),
            http: reader.address("HOST", "PORT", 8080),
            debug: reader.address("DEBUG_HOST", "DEBUG_PORT", 6070),
            metrics: reader.boolean("USE_PROMETHEUS").then(|| {
                let address = reader.text("PROMETHEUS_ADDR", ":9090");
                let path = reader.text("PROMETHEUS_PATH", "/metrics");
                if !path.starts_with('/') {
                    reader.fault("PROMETHEUS_PATH", "must begin with /, such as /metrics");
                }
                (address.to_owned(), path.to_owned())
            }),
            rules: match follows_server {
                false => {
                    RuleSource::Folder(RuleFolder { path, siblings, ignores_dot_files, shared })
                }
                true => RuleSource::Xds(Box::new(xds)),
            },
            health: HealthNeeds {
                rules: !starts_empty || reader.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
                store: match reader.given("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION") {
                    Some(_) => reader.boolean("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
                    None => !starts_empty,
                },
            },
            // Files are there, so waiting for them takes a moment.
            waits_for_rules: !follows_server || !starts_empty,
            answers: AnswerOptions {
                headers: reader.boolean("LIMIT_RESPONSE_HEADERS_ENABLED").then(|| HeaderNames {
                    limit: reader.text("LIMIT_LIMIT_HEADER", "RateLimit-Limit").to_owned(),
                    remaining: reader
                        .text("LIMIT_REMAINING_HEADER", "RateLimit-Remaining")
                        .to_owned(),
                    reset: reader.text("LIMIT_RESET_HEADER", "RateLimit-Reset").to_owned(),
                }),
                metadata: reader.boolean("RESPONSE_DYNAMIC_METADATA"),
                shadow_mode: reader.boolean("SHADOW_MODE"),
                quota_mode: reader.boolean("QUOTA_MODE"),
                near_limit: reader.number("NEAR_LIMIT_RATIO", NEAR_LIMIT, 0.0..=1.0),
            },
            store: store.url,
            sentinel_login: store.sentinel_login,
            log_format: reader
                .one_of("LOG_FORMAT", &[("text", LogFormat::Text), ("json", LogFormat::Json)]),
            log: reader.one_of(
                "LOG_LEVEL",
                &[
                    ("info", "info"),
                    ("warn", "warn"),
                    ("warning", "warn"),
                    ("error", "error"),
                    ("fatal", "error"),
                    ("panic", "error"),
                    ("debug", "debug"),
                    ("trace", "trace"),
                ],
            ),
        }
    }
}

/// What set variables do not do here, and names that may be mistyped.
fn remarks(set: &BTreeMap<String, String>) -> Vec<Remark> {
    let mut remarks = Vec::new();
    for name in set.keys() {
        let known = VARIABLES.iter().find(|variable| variable.name == name);
        match known.map(|variable| variable.fate) {
            Some(Fate::Ignored(text)) => {
                remarks.push(Remark { variable: name.clone(), text: text.to_owned() });
            }
            Some(Fate::ReadWith { other, value }) if !is_set(set, other, value) => {
                let text = format!("has no effect without {other}={value}");
                remarks.push(Remark { variable: name.clone(), text });
            }
            Some(Fate::Read | Fate::Refused { .. } | Fate::ReadWith { .. }) => {}
            None => {
                // Only names that are long enough to be mistyped ones of the service's.
                let similar = VARIABLES.iter().find(|variable| {
                    variable.name.len() > 8 && strsim::damerau_levenshtein(variable.name, name) <= 2
                });
                remarks.extend(similar.map(|similar| Remark {
                    variable: name.clone(),
                    text: format!("is not read: did you mean {}?", similar.name),
                }));
            }
        }
    }
    remarks
}

/// Whether a variable has this value.
fn is_set(set: &BTreeMap<String, String>, name: &str, value: &str) -> bool {
    let set = set.get(name).map_or("", String::as_str);
    set.eq_ignore_ascii_case(value) || value == "true" && boolean(set) == Some(true)
}
