//! What a kubelet does for a container of a pod: it fills the volumes and the environment, and runs
//! the program with a root directory of its own in the network of the pod.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use quotagate_support::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::api::Api;
use crate::istio::network::NetworkNamespace;

/// Binds the system's programs and those in `$1` into the root directory `$2`, enters it, and runs
/// the rest of its words as the user `$3`.
const ENTER: &str = r#"
programs=$1; root=$2; user=$3; shift 3
for folder in usr dev sys; do mount --rbind "/$folder" "$root/$folder"; done
for folder in bin sbin lib lib64; do
  if [ -L "/$folder" ]; then ln -sfn "$(readlink "/$folder")" "$root/$folder"
  elif [ -d "/$folder" ]; then mkdir -p "$root/$folder"; mount --rbind "/$folder" "$root/$folder"
  fi
done
mount -t proc proc "$root/proc"
mount --bind "$programs" "$root/usr/local/bin"
chroot --userspec="+$user:+$user" --groups= "$root" "$@" &
wait $!
"#;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What all containers of a run share.
#[derive(Debug)]
pub struct Node {
    /// A folder with the programs of the images.
    pub programs: PathBuf,
    /// `/etc/hosts` of all containers.
    pub hosts: String,
    /// The DNS server of all containers.
    pub dns: Ipv4Addr,
    /// Certificates of authorities that all containers trust.
    pub authorities: PathBuf,
    /// Istio's template of Envoy's bootstrap, which is part of the proxy's image.
    pub bootstrap: PathBuf,
}

/// A container to start.
#[derive(Debug)]
pub struct Container<'a> {
    /// The object of its pod, as the API server has it.
    pub pod: &'a Value,
    /// Its part of that object.
    pub spec: &'a Value,
    /// The program of its image.
    pub program: &'a str,
    /// Its user.
    pub user: u32,
    /// The network of its pod.
    pub network: &'a NetworkNamespace,
    /// A folder for its root directory and its log.
    pub folder: &'a Path,
}

/// A running container, killed when dropped.
#[derive(Debug)]
pub struct RunningContainer {
    /// The process around it. Whatever runs in the container ends with it.
    pub process: Process,
}

impl Node {
    /// Starts a container.
    ///
    /// # Errors
    /// When its files cannot be written, or the system refuses a namespace.
    pub fn start(&self, api: &Api, container: &Container) -> Result<RunningContainer> {
        let Container { pod, spec, program, user, network, folder } = *container;
        let name = spec["name"].as_str().context("a container without a name")?;
        let root = folder.join(name);
        self.prepare(&root, user)?;
        for mount in spec["volumeMounts"].as_array().into_iter().flatten() {
            let (volume, path) = (&mount["name"], mount["mountPath"].as_str().unwrap_or_default());
            let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
            let volume = volumes.find(|found| found["name"] == *volume);
            let volume = volume.with_context(|| format!("no volume for {path}"))?;
            fill(api, pod, volume, &root.join(path.trim_start_matches('/')))?;
        }
        own(&root.join("var/run/secrets"), user)?;
        own(&root.join("etc"), user)?;
        own(&root.join("var/lib"), user)?;
        let environment = environment(api, pod, spec)?;
        let words = spec["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let words = words.map(|word| expanded(word, &environment));
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", network.file().display())).args([
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
            ENTER,
            "container",
        ]);
        command.arg(&self.programs).arg(&root).arg(user.to_string());
        command.arg(program).args(words);
        command.env_clear().env("PATH", PATH).envs(environment.clone());
        let log = folder.join(format!("{name}.log"));
        // The container opens it again as /dev/stdout.
        chown(
            File::options().create(true).append(true).open(&log).map(|_| &log)?,
            Some(user),
            None,
        )?;
        Ok(RunningContainer { process: Process::spawn(name, &mut command, &log)? })
    }

    /// The directories and files of an image.
    fn prepare(&self, root: &Path, user: u32) -> Result<()> {
        let folders = ["usr", "dev", "sys", "proc", "tmp", "etc/ssl/certs", "var/lib/istio/envoy"];
        for folder in folders.iter().chain(&["var/run/secrets", "etc/istio/proxy"]) {
            fs::create_dir_all(root.join(folder))?;
        }
        chown(root.join("tmp"), Some(user), Some(user))?;
        fs::write(root.join("etc/hosts"), &self.hosts)?;
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n")?;
        fs::write(root.join("etc/resolv.conf"), format!("nameserver {}\n", self.dns))?;
        fs::copy(&self.authorities, root.join("etc/ssl/certs/ca-certificates.crt"))?;
        let template = fs::read_to_string(&self.bootstrap).context("Istio's bootstrap template")?;
        // An extension of Istio's own build, which the agent asks for in waypoints.
        let template = template.replace("if .metadata_discovery", "if false");
        fs::write(root.join("var/lib/istio/envoy/envoy_bootstrap_tmpl.json"), template)?;
        Ok(())
    }
}

impl RunningContainer {
    /// Sends a signal to its program.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let shell = child_of(self.process.pid())?;
        let program = child_of(shell)?;
        let program = Pid::from_raw(i32::try_from(program)?).context("process id 0")?;
        kill_process(program, signal).context("cannot signal a container")
    }
}

fn child_of(process: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
    let child = children.split_whitespace().next().context("the container has ended")?;
    Ok(child.parse()?)
}

/// Gives a folder with all that it contains to a user.
fn own(folder: &Path, user: u32) -> Result<()> {
    chown(folder, Some(user), Some(user))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => own(&entry.path(), user)?,
            false => chown(entry.path(), Some(user), Some(user))?,
        }
    }
    Ok(())
}

/// Writes the files of a volume.
fn fill(api: &Api, pod: &Value, volume: &Value, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let one = [volume.clone()];
    let sources = volume["projected"]["sources"].as_array().map_or(&one[..], Vec::as_slice);
    for source in sources {
        for (path, content) in files(api, pod, source)? {
            let path = folder.join(path);
            fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// The files of one source of a volume, by path.
fn files(api: &Api, pod: &Value, source: &Value) -> Result<BTreeMap<String, Vec<u8>>> {
    let namespace = text(&pod["metadata"]["namespace"]);
    if let Some(map) = source.get("configMap") {
        let name = text(&map["name"]);
        let Some(found) = api.find("ConfigMap", &namespace, &name)? else {
            if map["optional"] == json!(true) {
                return Ok(BTreeMap::new());
            }
            bail!("no ConfigMap {namespace}/{name}");
        };
        let data = found["data"].as_object().into_iter().flatten();
        return Ok(data.map(|(key, value)| (key.clone(), text(value).into_bytes())).collect());
    }
    if let Some(secret) = source.get("secret") {
        let name = secret.get("secretName").or_else(|| secret.get("name"));
        let name = text(name.unwrap_or(&Value::Null));
        let Some(found) = api.find("Secret", &namespace, &name)? else {
            if secret["optional"] == json!(true) {
                return Ok(BTreeMap::new());
            }
            bail!("no Secret {namespace}/{name}");
        };
        let data = found["data"].as_object().into_iter().flatten();
        return data.map(|(key, value)| Ok((key.clone(), STANDARD.decode(text(value))?))).collect();
    }
    if let Some(token) = source.get("serviceAccountToken") {
        let account = text(&pod["spec"]["serviceAccountName"]);
        let issued = api.token(&namespace, &account, token["audience"].as_str())?;
        return Ok(BTreeMap::from([(text(&token["path"]), issued.into_bytes())]));
    }
    let items = source["downwardAPI"]["items"].as_array().into_iter().flatten();
    Ok(items
        .map(|item| (text(&item["path"]), field(pod, &item["fieldRef"]).into_bytes()))
        .collect())
}

/// The environment of a container.
fn environment(api: &Api, pod: &Value, spec: &Value) -> Result<BTreeMap<String, String>> {
    let namespace = text(&pod["metadata"]["namespace"]);
    let mut environment = BTreeMap::new();
    for variable in spec["env"].as_array().into_iter().flatten() {
        let from = &variable["valueFrom"];
        let value = if let Some(reference) = from.get("fieldRef") {
            field(pod, reference)
        } else if let Some(reference) = from.get("secretKeyRef") {
            let (name, key) = (text(&reference["name"]), text(&reference["key"]));
            let secret = api.find("Secret", &namespace, &name)?;
            let secret = secret.with_context(|| format!("no Secret {namespace}/{name}"))?;
            String::from_utf8(STANDARD.decode(text(&secret["data"][&key]))?)?
        } else if from.get("resourceFieldRef").is_some() {
            // Containers here have no limits.
            continue;
        } else {
            expanded(variable["value"].as_str().unwrap_or_default(), &environment)
        };
        environment.insert(text(&variable["name"]), value);
    }
    Ok(environment)
}

/// A text with its `$(NAME)` replaced.
fn expanded(word: &str, environment: &BTreeMap<String, String>) -> String {
    let replace = |word: String, (name, value): (&String, &String)| {
        word.replace(&format!("$({name})"), value)
    };
    environment.iter().fold(word.to_owned(), replace)
}

/// What a field of a pod says, such as `metadata.labels`.
fn field(pod: &Value, reference: &Value) -> String {
    let path = format!("/{}", text(&reference["fieldPath"]).replace('.', "/"));
    match pod.pointer(&path) {
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
        }
        Some(value) => text(value),
        None => String::new(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(String::new, ToOwned::to_owned)
}
