//! Helm against a cluster without nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use quotagate_chart::cases::merge;
use quotagate_support::{paths, yaml};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api_server::{ApiServer, output};
use crate::binaries::{Binaries, Program};

/// The name and the namespace of every release, unless a check needs another name.
pub const RELEASE: &str = "quotagate";
/// What values have with which Helm waits for a Job.
const CHECK: &str = r#""check":true"#;
/// How often the Jobs of a release are looked for. No check depends on it.
const JOBS: Duration = Duration::from_millis(300);

/// Helm, with values of its own and one API server.
pub struct Helm<'a> {
    pub api: &'a ApiServer,
    program: PathBuf,
    folder: TempDir,
    /// What can be listed, for [`Helm::objects`].
    resources: String,
}

impl<'a> Helm<'a> {
    /// # Errors
    /// When Helm is missing.
    pub fn new(api: &'a ApiServer, binaries: &Binaries) -> Result<Self> {
        let program = binaries.path(Program::Helm)?;
        Ok(Self { api, program, folder: tempfile::tempdir()?, resources: String::new() })
    }

    /// Reads what the server can list. Call it once all definitions are there.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn discover(&mut self) -> Result<()> {
        let names = self.api.run(&["api-resources", "--verbs=list,delete", "-o", "name"])?;
        let names = names.lines().filter(|name| !name.starts_with("events"));
        self.resources = names.collect::<Vec<_>>().join(",");
        Ok(())
    }

    /// A folder for files of checks.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes an example's values, with these replaced, for `-f`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn values(&self, example: &str, replaced: &Value) -> Result<String> {
        let mut values = yaml::read(&quotagate_chart::chart().join("examples").join(example))?;
        merge(&mut values, replaced.clone());
        let file = self.folder.path().join("values.json");
        fs::write(&file, values.to_string())?;
        Ok(file.display().to_string())
    }

    /// `install` or `upgrade` of the shipped chart, with an example's values and these replaced.
    ///
    /// # Errors
    /// When it fails, or the server warns.
    pub fn put(&self, verb: &str, example: &str, replaced: &Value) -> Result<String> {
        self.run(&[verb, RELEASE, &chart(), "-f", &self.values(example, replaced)?])
    }

    /// What Helm prints. It acts in the namespace of the release.
    ///
    /// # Errors
    /// When it fails or prints a warning, with the message.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{errors}");
        }
        if let Some(warning) = errors.lines().find(|line| line.to_lowercase().contains("warn")) {
            bail!("{warning}");
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What it prints on standard error, whether it fails or not.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn errors(&self, arguments: &[&str]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.output(arguments)?.stderr).into_owned())
    }

    /// The message with which Helm refuses.
    ///
    /// # Errors
    /// When it does not, or the message lacks one of `parts`.
    pub fn refused(&self, arguments: &[&str], parts: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            bail!("Helm accepts it");
        }
        match parts.iter().find(|part| !message.contains(**part)) {
            Some(part) => bail!("the message lacks `{part}`: {message}"),
            None => Ok(message),
        }
    }

    /// Runs Helm, and meanwhile does the work of the Jobs that it waits for.
    fn output(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--namespace", RELEASE]);
        command.env("KUBECONFIG", self.api.kubeconfig());
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.folder.path().join(name));
        }
        let values = self.folder.path().join("values.json");
        let has_job = fs::read_to_string(&values).is_ok_and(|text| text.contains(CHECK));
        if !has_job || !arguments.contains(&values.to_string_lossy().as_ref()) {
            return output(&mut command, "");
        }
        thread::scope(|scope| {
            let helm = scope.spawn(|| output(&mut command, ""));
            while !helm.is_finished() {
                sleep(JOBS);
                // A Job that cannot be run makes Helm fail, which says more.
                let _ = self.run_checks();
            }
            helm.join().map_err(|_| anyhow::anyhow!("the thread of Helm panicked"))?
        })
    }

    /// Does what a node would do for the Job of `filter.check`: runs the command on the document,
    /// and reports how it ended.
    fn run_checks(&self) -> Result<()> {
        let jobs = self.api.get(&["jobs", "--namespace", RELEASE])?;
        for job in jobs["items"].as_array().into_iter().flatten() {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            if !name.ends_with("-check") || job["status"]["conditions"].is_array() {
                continue;
            }
            let documents = self.api.get(&["configmap", name, "--namespace", RELEASE])?;
            let document = documents["data"]["policy.yaml"].as_str().context("no document")?;
            let file = self.folder.path().join("policy.yaml");
            fs::write(&file, document)?;
            let check = output(Command::new(paths::command()).arg("check").arg(&file), "")?;
            let now = &job["metadata"]["creationTimestamp"];
            let (ends, done) = match check.status.success() {
                true => (["SuccessCriteriaMet", "Complete"], json!({"succeeded": 1})),
                false => (["FailureTarget", "Failed"], json!({"failed": 1})),
            };
            let conditions = ends.map(|end| {
                json!({"type": end, "status": "True", "lastProbeTime": now, "lastTransitionTime": now})
            });
            let mut status = done;
            status["conditions"] = json!(conditions);
            status["startTime"] = now.clone();
            if check.status.success() {
                status["completionTime"] = now.clone();
            }
            let patch = json!({"status": status}).to_string();
            let arguments = ["patch", "job", name, "--subresource=status", "--type=merge", "-p"];
            self.api.run(&[&arguments[..], &[&patch, "--namespace", RELEASE]].concat())?;
        }
        Ok(())
    }

    /// Everything in the cluster with these labels, as `kind/name`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn objects(&self, labels: &str) -> Result<Vec<String>> {
        let mut command = self.api.kubectl();
        command.args(["get", &self.resources, "--all-namespaces", "--ignore-not-found"]);
        let found = output(command.args(["-o", "name", "-l", labels]), "")?;
        ensure!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        Ok(String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect())
    }

    /// Uninstalls the release.
    ///
    /// # Errors
    /// When an object of it is still there.
    pub fn uninstall(&self) -> Result<()> {
        self.run(&["uninstall", RELEASE])?;
        let left = self.objects(&format!("app.kubernetes.io/instance={RELEASE}"))?;
        if !left.is_empty() {
            bail!("`helm uninstall` leaves {}", left.join(", "));
        }
        Ok(())
    }

    /// A field of a live object in the namespace of the release.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn live(&self, object: &str, pointer: &str) -> Result<Value> {
        let object = self.api.get(&[object, "--namespace", RELEASE])?;
        Ok(object.pointer(pointer).cloned().unwrap_or(Value::Null))
    }
}

/// The path of the shipped chart.
pub fn chart() -> String {
    quotagate_chart::chart().display().to_string()
}
