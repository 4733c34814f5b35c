//! A listener that Envoy reads from a file and watches, as file-based LDS does.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The file of an Envoy's listener.
#[derive(Debug)]
pub struct ListenerFile {
    path: PathBuf,
    _directory: TempDir,
}

impl ListenerFile {
    /// A file that is not written yet.
    ///
    /// # Errors
    /// When the system refuses a directory.
    pub fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        Ok(Self { path: directory.path().join("listeners.json"), _directory: directory })
    }

    /// Publishes the listener of this configuration. The file is written elsewhere and moved into
    /// place, because Envoy watches for moves.
    ///
    /// # Errors
    /// When the configuration has no listener, or the file cannot be written.
    pub fn publish(&self, version: &str, config: &Value) -> Result<()> {
        let listener = config.pointer("/static_resources/listeners/0").context("no listener")?;
        let mut listener = listener.clone();
        let fields = listener.as_object_mut().context("a listener is an object")?;
        fields.insert(
            "@type".to_owned(),
            json!("type.googleapis.com/envoy.config.listener.v3.Listener"),
        );
        let response = json!({"version_info": version, "resources": [listener]});
        let beside = self.path.with_extension("new");
        fs::write(&beside, response.to_string())?;
        Ok(fs::rename(beside, &self.path)?)
    }

    /// A change to a configuration that reads its listener from this file.
    pub fn edit(&self) -> impl Fn(&mut Value) -> Result<()> + use<> {
        let path = self.path.clone();
        move |config| {
            let resources = config.pointer_mut("/static_resources").and_then(Value::as_object_mut);
            resources.context("no static resources")?.remove("listeners");
            let config = config.as_object_mut().context("no object")?;
            config.insert("node".to_owned(), json!({"id": "test", "cluster": "test"}));
            let source = json!({"lds_config": {"path_config_source": {"path": path}}});
            config.insert("dynamic_resources".to_owned(), source);
            Ok(())
        }
    }
}
