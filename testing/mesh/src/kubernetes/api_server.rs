//! A Kubernetes API server on this machine: etcd and kube-apiserver, without controllers and nodes.

use std::{
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quotagate_support::{
    ports,
    process::Process,
    tls::{Authority, Holder},
    wait,
};
use rcgen::DnType;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries::{Binaries, Program, installed};

/// How long etcd and kube-apiserver may take until they serve, on a busy machine.
const START: Duration = Duration::from_secs(90);
/// What certificates of the server call it, beside its address.
const NAMES: [&str; 4] =
    ["localhost", "kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// A running API server that knows one user, its administrator. Both processes end when it is
/// dropped; all objects are gone then.
///
/// Nothing but the server runs. So no Deployment gets pods, no Service gets endpoints, a deleted
/// namespace stays, and a ServiceAccount that pods use must be created, even `default`.
pub struct ApiServer {
    // Ends before etcd, and both end before the folder is removed.
    server: Process,
    _etcd: Process,
    folder: TempDir,
    address: SocketAddr,
    #[allow(dead_code, reason = "the checks of Istio come next")]
    authority: Authority,
    kubectl: PathBuf,
}

#[allow(dead_code, reason = "the checks of Istio come next")]
impl ApiServer {
    /// Starts one that listens on loopback.
    ///
    /// # Errors
    /// When a program is missing, or does not serve in time.
    pub fn start(binaries: &Binaries) -> Result<Self> {
        Self::start_at(binaries, Ipv4Addr::LOCALHOST)
    }

    /// Starts one that listens on this address, so that other network namespaces can reach it.
    /// etcd listens on loopback.
    ///
    /// # Errors
    /// As for [`ApiServer::start`].
    pub fn start_at(binaries: &Binaries, address: Ipv4Addr) -> Result<Self> {
        let program = binaries.path(Program::KubeApiserver)?;
        let (etcd, kubectl) = (installed("etcd")?, installed("kubectl")?);
        let folder = tempfile::tempdir()?;
        let file = |name: &str| folder.path().join(name);
        let (clients, peers) = (loopback(ports::free()?), loopback(ports::free()?));

        let mut command = Command::new(etcd);
        command.arg("--data-dir").arg(file("etcd")).args(["--listen-client-urls", &clients]);
        command.args(["--advertise-client-urls", &clients, "--listen-peer-urls", &peers]);
        command.args(["--initial-advertise-peer-urls", &peers, "--unsafe-no-fsync"]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        let etcd = Process::spawn("etcd", &mut command, &file("etcd.log"))?;

        let authority = Authority::new(folder.path(), "ca")?;
        let own_address = address.to_string();
        let names = Holder::names(&[NAMES.as_slice(), &[own_address.as_str()]].concat());
        authority.issue(&names)?.write(&file("server.pem"), &file("server.key"))?;
        let admin = Holder::default()
            .subject(DnType::OrganizationName, "system:masters")
            .subject(DnType::CommonName, "admin");
        authority.issue(&admin)?.write(&file("admin.pem"), &file("admin.key"))?;
        // Its key signs the tokens of ServiceAccounts.
        authority.issue(&Holder::default())?.write(&file("tokens.pem"), &file("tokens.key"))?;

        let address = SocketAddr::new(IpAddr::V4(address), ports::free()?);
        fs::write(file("kubeconfig"), kubeconfig(address, folder.path()).to_string())?;
        let mut command = Command::new(program);
        for (flag, name) in [
            ("--client-ca-file", "ca.pem"),
            ("--tls-cert-file", "server.pem"),
            ("--tls-private-key-file", "server.key"),
            ("--service-account-key-file", "tokens.pem"),
            ("--service-account-signing-key-file", "tokens.key"),
        ] {
            command.arg(flag).arg(file(name));
        }
        command.args(["--etcd-servers", &clients, "--authorization-mode", "RBAC"]);
        command.args(["--bind-address", &address.ip().to_string()]);
        command.args(["--secure-port", &address.port().to_string()]);
        command.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        command.args(["--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged"]);
        // Webhooks are called at the endpoints of their Services: nothing routes cluster addresses.
        command.arg("--enable-aggregator-routing");
        // The Service `kubernetes` gets no endpoints: loopback would be a faulty one.
        command.args(["--endpoint-reconciler-type", "none"]);
        let server = Process::spawn("kube-apiserver", &mut command, &file("server.log"))?;

        let mut api = Self { server, _etcd: etcd, folder, address, authority, kubectl };
        api.await_ready()?;
        Ok(api)
    }

    fn await_ready(&mut self) -> Result<()> {
        let (kubectl, kubeconfig) = (self.kubectl.clone(), self.kubeconfig());
        self.server.wait_until("ready kube-apiserver", START, |_| {
            let mut command = Command::new(&kubectl);
            command.arg("--kubeconfig").arg(&kubeconfig).args(["get", "--raw", "/readyz"]);
            Ok(command.output()?.status.success().then_some(()))
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The kubeconfig of its administrator, with paths of certificates and keys.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Who signed its certificate. Clients with a certificate of this authority are known by its
    /// common name, and belong to the groups that its organizations name.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Stops it without closing its connections, or lets it go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self, is_frozen: bool) -> Result<()> {
        let pid = i32::try_from(self.server.pid()).ok().and_then(Pid::from_raw);
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        Ok(kill_process(pid.context("no process")?, signal)?)
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// `kubectl`, as the administrator.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }

    /// What `kubectl` prints with these arguments.
    ///
    /// # Errors
    /// When it fails, with what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        printed(self.kubectl().args(arguments), "")
    }

    /// Creates or changes the objects of this YAML (or JSON) by server-side apply, and returns
    /// what `kubectl` prints: a line for each object, and the server's warnings.
    ///
    /// # Errors
    /// When the server refuses one of them, with its message.
    pub fn apply(&self, objects: &str) -> Result<String> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        printed(self.kubectl().args(arguments), objects)
    }

    /// Creates or changes the objects of these files, or of all files below these folders.
    ///
    /// # Errors
    /// When the server refuses one of them, with its message.
    pub fn apply_files(&self, paths: &[PathBuf]) -> Result<String> {
        let mut command = self.kubectl();
        command.args(["apply", "--server-side", "--force-conflicts", "--recursive"]);
        paths.iter().for_each(|path| _ = command.arg("-f").arg(path));
        printed(&mut command, "")
    }

    /// The JSON of `kubectl get` with these arguments.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let output = output(self.kubectl().args(["get", "-o", "json"]).args(arguments), "")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("kubectl printed no JSON")
    }

    /// Waits until `condition` accepts what [`ApiServer::get`] finds.
    ///
    /// # Errors
    /// When `limit` has passed.
    pub fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        arguments: &[&str],
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait::until(what, limit, || Ok(Some(self.get(arguments)?).filter(&condition)))
    }
}

/// What a program prints on both outputs, given this input.
///
/// # Errors
/// When it fails, with what it printed.
pub fn printed(command: &mut Command, input: &str) -> Result<String> {
    let output = output(command, input)?;
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if !output.status.success() {
        bail!("{text}");
    }
    Ok(text)
}

/// What a program prints, given this input.
///
/// # Errors
/// When it cannot be started.
pub fn output(command: &mut Command, input: &str) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early closes the pipe. Its own message says more.
        let _ = stdin.write_all(input.as_bytes());
    }
    Ok(child.wait_with_output()?)
}

fn loopback(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn kubeconfig(address: SocketAddr, folder: &Path) -> Value {
    let file = |name: &str| folder.join(name);
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "mesh",
        "clusters": [{"name": "mesh", "cluster": {
            "server": format!("https://{address}"), "certificate-authority": file("ca.pem"),
        }}],
        "users": [{"name": "admin", "user": {
            "client-certificate": file("admin.pem"), "client-key": file("admin.key"),
        }}],
        "contexts": [{"name": "mesh", "context": {"cluster": "mesh", "user": "admin"}}],
    })
}
