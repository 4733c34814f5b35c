//! What services need that are measured: their rules and programs.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use quotagate_support::{
    redis::Redis,
    store::{StoreOptions, StoreProcess},
    wait,
};
use tempfile::TempDir;

/// The domain of the rules.
pub const DOMAIN: &str = "bench";
/// The key of the entry that is counted.
pub const KEY: &str = "user";
const RULES: &str = "
domain: bench
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: user, value: spent, rate_limit: {unit: year, requests_per_unit: 1}}
";
const START: Duration = Duration::from_secs(60);

/// One of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Each request is counted in Redis.
    Exact,
    /// Out of prefetched units.
    Lease,
    /// envoyproxy/ratelimit.
    Original,
}

impl Subject {
    pub const fn title(self) -> &'static str {
        match self {
            Self::Exact => "quotagate ratelimit, exact",
            Self::Lease => "quotagate ratelimit, lease",
            Self::Original => "envoyproxy/ratelimit",
        }
    }
}

/// What all services need: the rules, and the program of the original.
#[derive(Debug)]
pub struct ServiceParts {
    rules: TempDir,
    original: Option<PathBuf>,
}

impl ServiceParts {
    /// With this program of the original, if it is to be measured.
    pub fn new(original: Option<&Path>) -> Result<Self> {
        let rules = tempfile::tempdir()?;
        fs::write(rules.path().join("rules.yaml"), RULES)?;
        // Programs do not start in the folder of the user.
        let original = original.map(|path| {
            fs::canonicalize(path).with_context(|| format!("--original: {}", path.display()))
        });
        Ok(Self { rules, original: original.transpose()? })
    }

    /// The services that can be measured.
    pub fn subjects(&self) -> Vec<Subject> {
        let ours = [Subject::Exact, Subject::Lease];
        ours.into_iter().chain(self.original.is_some().then_some(Subject::Original)).collect()
    }

    /// Starts a service. The command `under` runs it.
    pub fn start(
        &self,
        subject: Subject,
        redis: &Redis,
        under: &[OsString],
    ) -> Result<StoreProcess> {
        let headers = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        if subject == Subject::Original {
            let program = self.original.as_deref().context("it needs --original PATH")?;
            return StoreProcess::start_original(
                program,
                redis.port(),
                self.rules.path(),
                &[headers],
            );
        }
        let precision = if subject == Subject::Lease { "lease" } else { "exact" };
        // A request that cannot be counted would be cheap, so it must fail the measurement.
        let arguments = ["--precision", precision, "--timeout", "10s"];
        let options = StoreOptions::rate_limits(&redis.url(), self.rules.path());
        let mut options = options.arguments(&arguments).env(headers.0, headers.1);
        options.under = under.to_vec();
        let service = StoreProcess::start_with(&options)?;
        wait::until_true("the rules", START, || Ok(service.log().contains(" in force")))?;
        Ok(service)
    }
}
