//! `quotagate health`: one GET, for health checks in images that contain no other program.

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;

use crate::operate::AdminAddr;
use crate::standard::{error_line, print};
use crate::text::clean;

/// A check that waits longer says nothing about the next request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct HealthArgs {
    /// Ask whether every request can be counted (/readyz), not only whether the process runs
    /// (/healthz)
    #[arg(long)]
    ready: bool,
    /// The store's admin address, or a whole URL of any server that answers 200 while it is
    /// healthy, such as Envoy's http://127.0.0.1:9901/ready
    #[arg(env = "QUOTAGATE_ADMIN", default_value = "127.0.0.1:9181", value_name = "URL")]
    target: Target,
}

/// A server, and the path to ask for, if the URL has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    address: AdminAddr,
    path: Option<String>,
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = || Ok(Self { address: text.parse()?, path: None });
        let Some(rest) = text.strip_prefix("http://") else { return whole() };
        let Some((host, path)) = rest.split_once('/').filter(|(_, path)| !path.is_empty()) else {
            return whole();
        };
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the path must be of visible ASCII characters");
        }
        Ok(Self { address: host.parse()?, path: Some(format!("/{path}")) })
    }
}

/// What `/readyz` says.
#[derive(Deserialize)]
struct Readiness {
    faults: Vec<String>,
}

/// Status 0 and one word if the server answers 200, else status 1 and the reason.
///
/// # Errors
/// One sentence about a wrong flag, or about a system call that failed.
pub(crate) fn run(args: &HealthArgs) -> Result<ExitCode, String> {
    let Target { address, path } = &args.target;
    let path = match path.as_deref() {
        Some(_) if args.ready => {
            return Err("--ready asks for /readyz: give an address without a path".to_owned());
        }
        Some(path) => path,
        None if args.ready => "/readyz",
        None => "/healthz",
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let answer = runtime.block_on(async {
        let answer = tokio::time::timeout(TIMEOUT, get(address, path)).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
    });
    // A name lookup that hangs must not delay the end.
    runtime.shutdown_background();
    match answer {
        Ok((StatusCode::OK, _)) => print("ok\n"),
        Ok((status, body)) => Ok(unhealthy(address, &reason(status, &body))),
        Err(error) => Ok(unhealthy(address, &error)),
    }
}

fn unhealthy(address: &AdminAddr, why: &str) -> ExitCode {
    error_line(&format!("quotagate: {address}: {}", clean(why)));
    ExitCode::FAILURE
}

/// What an answer says that is not 200: the faults of a store, else its status.
fn reason(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<Readiness>(body) {
        Ok(Readiness { faults }) if !faults.is_empty() => {
            format!("not ready: {}", faults.join("; "))
        }
        _ => format!("answered {}", status.as_u16()),
    }
}

async fn get(address: &AdminAddr, path: &str) -> Result<(StatusCode, Bytes), String> {
    match address {
        AdminAddr::Tcp(authority) => {
            let stream = TcpStream::connect(authority.as_str()).await.map_err(unreachable)?;
            // A store refuses names that it does not know, so the host is the address.
            let host = stream.peer_addr().map_err(unreachable)?.to_string();
            over(stream, &host, path).await
        }
        AdminAddr::Unix(socket) => {
            let stream = UnixStream::connect(socket).await.map_err(unreachable)?;
            over(stream, "localhost", path).await
        }
    }
}

fn unreachable(error: impl Display) -> String {
    format!("cannot be reached: {error}")
}

async fn over<S>(stream: S, host: &str, path: &str) -> Result<(StatusCode, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| format!("does not answer in HTTP: {error}");
    let request = Request::get(path).header(HOST, host).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // An error of the connection is reported by the request.
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    // The status decides; a body that breaks off only lacks its reason.
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    driver.abort();
    Ok((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_address_or_a_whole_url() {
        for (text, address, path) in [
            ("127.0.0.1:9181", "127.0.0.1:9181", None),
            ("http://[::1]:9181/", "[::1]:9181", None),
            ("unix:/run/admin.sock", "unix:/run/admin.sock", None),
            ("http://127.0.0.1:9901/ready", "127.0.0.1:9901", Some("/ready")),
            ("http://s:1/readyz?partial", "s:1", Some("/readyz?partial")),
        ] {
            let Target { address: read, path: read_path } = text.parse().unwrap();
            assert_eq!((read.to_string().as_str(), read_path.as_deref()), (address, path));
        }
        for text in ["store", "https://s:1/", "s:1/ready", "http:///ready", "http://s:1/a b"] {
            text.parse::<Target>().unwrap_err();
        }
    }

    #[test]
    fn a_reason_lists_the_faults_of_a_store() {
        let body = br#"{"ready": false, "faults": ["a", "b"]}"#;
        assert_eq!(reason(StatusCode::SERVICE_UNAVAILABLE, body), "not ready: a; b");
        for body in [&b""[..], b"LIVE", br#"{"ready": true, "faults": []}"#] {
            assert_eq!(reason(StatusCode::NOT_FOUND, body), "answered 404");
        }
    }
}
