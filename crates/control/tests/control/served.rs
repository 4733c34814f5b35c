//! A server for one test, and requests to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode};
use quotagate_control::{App, serve};
use quotagate_store::server::{ListenAddr, Listener};
use quotagate_store::store::Store;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::open;
use crate::http::{host, read, send};

/// A filter's report of the policy `p`.
pub const REPORT: &[u8] = br#"{"policies":[{"name":"p","quota":5,"window_s":31622400,"stagger":false,"mode":"enforce","on_failure":"allow","admitted":3}]}"#;

/// A server over memory.
pub async fn memory() -> Served {
    Served::start(open("memory:").await).await
}

pub struct Served {
    pub calls: ListenAddr,
    pub admin: ListenAddr,
    /// Send the time to drain to stop the server; if dropped, it stops without draining.
    pub stop: Option<oneshot::Sender<Duration>>,
    pub running: JoinHandle<()>,
}

impl Served {
    pub async fn start(store: Arc<dyn Store>) -> Self {
        Self::app(App::new(store, None)).await
    }

    pub async fn app(app: App) -> Self {
        let bind = async || Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (calls, admin) = (bind().await, bind().await);
        let addresses = (calls.address().clone(), admin.address().clone());
        let (stop, stopped) = oneshot::channel();
        let running =
            tokio::spawn(serve(calls, admin, app, async { stopped.await.unwrap_or_default() }));
        Self { calls: addresses.0, admin: addresses.1, stop: Some(stop), running }
    }

    /// Sends a request to the admin address, as a command does.
    pub async fn admin(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("host", host(&self.admin));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        read(send(&self.admin, request.body(Full::new(Bytes::from(body))).unwrap()).await).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.admin(Method::GET, path, None).await
    }

    /// Fetches dials, as a filter does.
    pub async fn dials(&self, domain: &str, report: Option<&[u8]>) -> (StatusCode, Value) {
        let request =
            Request::post(format!("/v1/telemetry?domain={domain}")).header("host", "store");
        let report = Bytes::copy_from_slice(report.unwrap_or_default());
        read(send(&self.calls, request.body(Full::new(report)).unwrap()).await).await
    }
}
