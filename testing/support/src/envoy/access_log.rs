//! An access log of Envoy, written to a file as JSON lines in a format that the test gives.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    envoy::{self, Form},
    paths, wait, yaml,
};

/// Envoy makes an entry when a stream has ended, and writes it to the file some moments later.
const LIMIT: Duration = Duration::from_secs(10);

/// A file for the entries, gone when dropped.
#[derive(Debug)]
pub struct AccessLog {
    directory: TempDir,
    format: Value,
}

impl AccessLog {
    /// Entries of this `json_format`, such as `{"status": "%RESPONSE_CODE%"}`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn new(format: Value) -> Result<Self> {
        Ok(Self { directory: tempfile::tempdir()?, format })
    }

    /// Entries of the format that is shipped for the form of this run.
    ///
    /// # Errors
    /// When it is not there, or the file cannot be created.
    pub fn shipped() -> Result<Self> {
        let name = match Form::of_run()? {
            Form::Wasm => "access_log.yaml",
            Form::Native => "native_access_log.yaml",
        };
        let mut snippet = yaml::read(&paths::root().join("envoy").join(name))?;
        let format = yaml::at(&mut snippet, "/access_log/0/typed_config/log_format/json_format")?;
        Self::new(format.take())
    }

    /// Makes an Envoy write it: for [`EnvoyOptions::edit`](crate::envoy::EnvoyOptions::edit).
    pub fn edit(&self) -> impl Fn(&mut Value) -> Result<()> + use<> {
        let logger = json!({
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": self.file(),
                "log_format": {"json_format": self.format}
            }
        });
        move |config| {
            yaml::list(envoy::manager(config)?, "access_log")?.push(logger.clone());
            Ok(())
        }
    }

    /// The entries, once there are so many. Their order may differ from that of the requests.
    ///
    /// # Errors
    /// When there are fewer after ten seconds, or a line is not JSON.
    pub fn entries(&self, count: usize) -> Result<Vec<Value>> {
        let lines = wait::until(&format!("{count} entries in the access log"), LIMIT, || {
            let text = fs::read_to_string(self.file())?;
            // Envoy is still writing a line without a line end.
            let (whole, _) = text.rsplit_once('\n').context("no entry yet")?;
            let lines: Vec<String> = whole.lines().map(str::to_owned).collect();
            Ok((lines.len() >= count).then_some(lines))
        })?;
        lines.iter().map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("access.log")
    }
}
