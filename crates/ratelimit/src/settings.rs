//! The settings of envoyproxy/ratelimit, which come from environment variables.
//!
//! | part | does |
//! | --- | --- |
//! | `table` | what becomes of each variable |
//! | `reader` | reads booleans, durations and numbers as Go does |
//! | `redis` | makes a store URL of the variables of Redis |

mod reader;
mod redis;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use self::reader::VariableReader;
use self::table::{Fate, VARIABLES};
use crate::files::RuleFolder;
use crate::headers::HeaderNames;
use crate::rules::SharedDomains;
use crate::service::AnswerOptions;

/// The settings of a service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where Envoy calls: `host:port`, or `unix:` and a path.
    pub grpc: String,
    /// Where `/json` and `/healthcheck` are.
    pub http: String,
    /// Where `/rlconfig` is.
    pub debug: String,
    /// Where Prometheus scrapes, and the path.
    pub metrics: Option<(String, String)>,
    /// The rule files.
    pub rules: RuleFolder,
    /// What answers contain.
    pub answers: AnswerOptions,
    /// The URL of the store; `None` if no variable of Redis is set.
    pub store: Option<StoreText>,
    /// The level of the log, as `tracing` calls it.
    pub log: &'static str,
}

/// The text of a store URL. It may hold a password, so it is never shown.
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
            let sub = part("RUNTIME_SUBDIRECTORY", "");
            root.join(sub).join(part("RUNTIME_APPDIRECTORY", "config"))
        };
        let path = folder();
        let shared = match reader.boolean("MERGE_DOMAIN_CONFIG") {
            true => SharedDomains::Merge,
            false => SharedDomains::Refuse,
        };
        let ignores_dot_files = reader.boolean("RUNTIME_IGNOREDOTFILES");
        let grpc = match reader.text("GRPC_UDS", "") {
            "" => reader.address("GRPC_HOST", "GRPC_PORT", 8081),
            path => format!("unix:{path}"),
        };
        Self {
            grpc,
            http: reader.address("HOST", "PORT", 8080),
            debug: reader.address("DEBUG_HOST", "DEBUG_PORT", 6070),
            metrics: reader.boolean("USE_PROMETHEUS").then(|| {
                let address = reader.text("PROMETHEUS_ADDR", ":9090");
                let host = if address.starts_with(':') { "0.0.0.0" } else { "" };
                (format!("{host}{address}"), reader.text("PROMETHEUS_PATH", "/metrics").to_owned())
            }),
            rules: RuleFolder { path, ignores_dot_files, shared },
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
            },
            store: redis::store(reader),
            log: reader.one_of(
                "LOG_LEVEL",
                &[
                    ("warn", "warn"),
                    ("warning", "warn"),
                    ("error", "error"),
                    ("fatal", "error"),
                    ("panic", "error"),
                    ("info", "info"),
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
            Some(Fate::Read | Fate::Refused { .. }) => {}
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
