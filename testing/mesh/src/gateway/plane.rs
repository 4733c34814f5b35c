//! Envoy Gateway in its standalone mode, and the Envoys that it wants. It starts a stand-in for
//! each, which only notes its arguments: as in a cluster, proxies live on when Envoy Gateway ends.

use std::cell::RefCell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use quotagate_support::http;
use quotagate_support::process::Process;
use quotagate_support::wait;
use quotagate_workspace::{paths, task, tools};
use serde_json::{Value, json};

use crate::binaries::{Binaries, Program};

/// How long a part may take until it is up, and a change until proxies obey it.
pub const START: Duration = Duration::from_secs(120);
/// The Envoy that Envoy Gateway 1.9.0 looks for.
const LOOKED_FOR: &str = "envoy-versions/1.39.0/bin/envoy";

/// Makes a root directory `$1` of the system's own, with names of hosts `$2`, an authority `$3`
/// that all trust, certificates `$4`, and the native module `$5` where an image has it. Runs the
/// rest of its words in it. Nobody outside of this mount namespace sees it.
const INSIDE: &str = r#"
root=$1
mount -t tmpfs tmpfs "$root"
for entry in /*; do
  if [ -L "$entry" ]; then cp -P "$entry" "$root/"
  elif [ -d "$entry" ] && [ "$entry" != /opt ]; then
    mkdir "$root$entry"
    mount --rbind "$entry" "$root$entry"
  fi
done
mount --bind "$2" "$root/etc/hosts"
mount --bind "$3" "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$root/certs" "$root/opt/quotagate/lib"
mount --bind "$4" "$root/certs"
touch "$root/opt/quotagate/lib/libquotagate.so"
mount --bind "$5" "$root/opt/quotagate/lib/libquotagate.so"
shift 5
exec chroot "$root" "$@"
"#;

/// Notes the arguments in a file named after the Gateway, until Envoy Gateway ends it.
const STAND_IN: &str = r#"#!/bin/sh
file=FOLDER/proxies/$(echo "$2" | tr / .)
printf '%s\n\036' "$@" > "$file.part"
mv "$file.part" "$file"
exec sleep infinity
"#;

/// A running Envoy Gateway.
pub struct Plane {
    folder: PathBuf,
    program: PathBuf,
    process: RefCell<Process>,
    /// The user's objects that stay.
    own: Vec<Value>,
}

/// A running Envoy of a Gateway, killed when dropped.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    admin: u16,
    /// The port of the Gateway's listener.
    pub port: u16,
}

impl Plane {
    /// Starts one in this folder, which has `ca.pem`, with these names of hosts, a shipped file and
    /// these objects.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        hosts: &[(&str, Ipv4Addr)],
        rate_limits: &str,
        shipped: &str,
        objects: &[Value],
    ) -> Result<Self> {
        let program = binaries.path(Program::EnvoyGateway)?;
        let stand_in = folder.join("data").join(LOOKED_FOR);
        for made in ["objects", "proxies", "root"] {
            fs::create_dir_all(folder.join(made))?;
        }
        fs::create_dir_all(stand_in.parent().context("no folder")?)?;
        fs::write(&stand_in, STAND_IN.replace("FOLDER", &folder.display().to_string()))?;
        executable(&stand_in)?;
        let lines = hosts.iter().map(|(name, address)| format!("{address} {name}\n"));
        let lines: String =
            std::iter::once("127.0.0.1 localhost\n".to_owned()).chain(lines).collect();
        fs::write(folder.join("hosts"), lines)?;
        let directory = |name: &str| folder.join(name);
        let config = json!({
            "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
            "gateway": {"controllerName": CONTROLLER},
            "provider": {"type": "Custom", "custom": {
                "resource": {"type": "File", "file": {"paths": [directory("objects")]}},
                "infrastructure": {"type": "Host", "host": {
                    "configHome": directory("config"), "dataHome": directory("data"),
                    "stateHome": directory("state"), "runtimeDir": directory("run")}},
            }},
            "extensionApis": {"enableLua": true, "enableBackend": true},
            "rateLimit": {"timeout": "2s", "failClosed": true,
                "backend": {"type": "Redis", "redis": {"url": rate_limits}}},
        });
        fs::write(folder.join("gateway.json"), config.to_string())?;
        let mut certificates = Command::new(&program);
        certificates.args(["certgen", "--local", "--config-home"]).arg(directory("config"));
        task::printed(&mut certificates)?;
        let file = paths::root().join("envoy/gateway").join(shipped);
        fs::copy(file, folder.join("objects").join(shipped))?;
        // What it generates for its proxies in this mode is of another authority.
        let read = |file: &str| fs::read_to_string(folder.join("config/certs/envoy").join(file));
        let certificate = json!({"tls.crt": read("tls.crt")?, "tls.key": read("tls.key")?,
            "ca.crt": read("ca.crt")?});
        let certificate = secret("envoy-gateway-system", "envoy", &certificate);
        let own: Vec<Value> = objects.iter().cloned().chain([certificate]).collect();
        write(folder, &own)?;
        let process = RefCell::new(launch(folder, &program)?);
        Ok(Self { folder: folder.to_path_buf(), program, process, own })
    }

    /// Applies these objects in the place of those that were applied this way before.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, objects: &[Value]) -> Result<()> {
        write(&self.folder, self.own.iter().chain(objects))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.borrow().log()
    }

    /// Waits until its log says so after the first `from` bytes.
    ///
    /// # Errors
    /// When it does not.
    pub fn until_logged(&self, from: usize, words: &[&str]) -> Result<()> {
        wait::until_true(&format!("{words:?} in the log of Envoy Gateway"), START, || {
            let log = self.log();
            let log = log.get(from..).unwrap_or_default();
            Ok(words.iter().all(|word| log.contains(word)))
        })
    }

    /// Kills it. Its proxies live on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&self) -> Result<()> {
        self.process.borrow_mut().kill()
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart(&self) -> Result<()> {
        *self.process.borrow_mut() = launch(&self.folder, &self.program)?;
        Ok(())
    }

    /// Starts an Envoy for a Gateway, with the arguments of Envoy Gateway. It may not listen yet.
    ///
    /// # Errors
    /// When Envoy Gateway wants none, or it does not start.
    pub fn proxy(&self, gateway: &str, port: u16) -> Result<Proxy> {
        let file = self.folder.join("proxies").join(format!("default.{gateway}"));
        let wanted = wait::until("the arguments of a proxy", START, || {
            Ok(Some(fs::read_to_string(&file)?))
        })?;
        let mut admin = file.clone();
        admin.set_extension(format!("{gateway}.admin"));
        if admin.exists() {
            fs::remove_file(&admin)?;
        }
        let words = wanted.split("\n\u{1e}").filter(|word| !word.is_empty());
        let words = words.take_while(|word| *word != "--admin-address-path");
        let mut command = contained(&self.folder, "envoy", &tools::envoy()?, &[]);
        command.args(words).arg("--admin-address-path").arg(&admin);
        command.args(["--concurrency", "2", "--disable-hot-restart"]);
        let log = self.folder.join(format!("{gateway}.log"));
        let mut process = Process::spawn("Envoy", &mut command, &log)?;
        let admin = process.wait_until("its address", START, |_| {
            let address = fs::read_to_string(&admin)?;
            Ok(address.rsplit(':').next().and_then(|port| port.parse().ok()))
        })?;
        Ok(Proxy { process, admin, port })
    }
}

/// The name of Envoy Gateway in a `GatewayClass`.
pub const CONTROLLER: &str = "gateway.envoyproxy.io/gatewayclass-controller";

impl Proxy {
    /// Kills it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Waits until it listens.
    ///
    /// # Errors
    /// When it does not.
    pub fn until_listening(&mut self) -> Result<()> {
        let port = self.port;
        self.process
            .wait_until("its listener", START, |_| Ok(http::get(port, "/").is_ok().then_some(())))
    }

    /// Its answer to `GET` at the port of Envoy's administration.
    ///
    /// # Errors
    /// When it does not answer 200.
    pub fn admin(&self, path: &str) -> Result<String> {
        let response = http::get(self.admin, path)?;
        ensure!(response.status == 200, "{path}: {}", response.text());
        Ok(response.text())
    }

    /// A value of its statistics in the form of Prometheus, where alerts look.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn sample(&self, name: &str) -> Result<u64> {
        let samples = self.admin("/stats/prometheus")?;
        let line = samples.lines().find_map(|line| line.strip_prefix(name)?.rsplit(' ').next());
        Ok(line.with_context(|| format!("no {name}"))?.parse()?)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A program with the names and files of the run, and the certificates of a part of Envoy Gateway.
pub fn contained(folder: &Path, part: &str, program: &Path, unshare: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).args(unshare);
    command.args(["sh", "-ec", INSIDE, "contained"]);
    let certificates = folder.join("config/certs").join(part);
    command.args([folder.join("root"), folder.join("hosts"), folder.join("ca.pem")]);
    command.args([certificates, paths::module()]).arg(program);
    command
}

fn launch(folder: &Path, program: &Path) -> Result<Process> {
    // Its children end with it.
    let mut command =
        contained(folder, "envoy-gateway", program, &["--pid", "--fork", "--kill-child"]);
    command.args(["server", "--config-path"]).arg(folder.join("gateway.json"));
    let log = folder.join("gateway.log");
    let mut process = Process::spawn("Envoy Gateway", &mut command, &log)?;
    process.wait_until("its readiness", START, |_| {
        Ok((http::get(8081, "/readyz")?.status == 200).then_some(()))
    })?;
    Ok(process)
}

/// Writes all objects into one file. There should be few: Envoy Gateway validates each of them
/// after each change, which takes tenths of a second of processor time.
fn write<'a>(folder: &Path, objects: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    let texts: Vec<String> = objects.into_iter().map(Value::to_string).collect();
    let new = folder.join("own.yaml");
    fs::write(&new, texts.join("\n---\n"))?;
    Ok(fs::rename(&new, folder.join("objects/own.yaml"))?)
}

/// A Secret with these texts.
pub fn secret(namespace: &str, name: &str, texts: &Value) -> Value {
    let data = texts.as_object().into_iter().flatten();
    let data = data.map(|(key, text)| {
        (key.clone(), json!(STANDARD.encode(text.as_str().unwrap_or_default())))
    });
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace},
        "data": data.collect::<serde_json::Map<_, _>>()})
}

fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}
