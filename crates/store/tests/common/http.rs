//! A server of its own, and calls to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use quotagate_store::server::{App, ListenAddr, Listener, run};
use quotagate_store::store::Store;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub struct Served {
    pub calls: ListenAddr,
    pub admin: ListenAddr,
    /// Sent how long to drain; dropped, the server does not drain.
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
        let running = tokio::spawn(run(calls, admin, app, async { stopped.await.unwrap_or_default() }));
        Self { calls: addresses.0, admin: addresses.1, stop: Some(stop), running }
    }

    /// A request to the admin address, as a command sends it.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path).header("host", host(&self.admin));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        read(send(&self.admin, request.body(Full::new(Bytes::from(body))).unwrap()).await).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.admin(Method::GET, path, None).await
    }

    /// What a filter asks for.
    pub async fn dials(&self, domain: &str, report: Option<&[u8]>) -> (StatusCode, Value) {
        let mut request = Request::get(format!("/v1/dials?domain={domain}")).header("host", "store");
        if let Some(report) = report {
            request = request.header("x-quotagate-report", report);
        }
        read(send(&self.calls, request.body(Full::default()).unwrap()).await).await
    }
}

pub fn host(address: &ListenAddr) -> String {
    let ListenAddr::Tcp(address) = address else { panic!("over TCP only") };
    address.to_string()
}

pub async fn send(address: &ListenAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TokioIo::new(TcpStream::connect(host(address)).await.unwrap());
    let (mut send, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send.send_request(request).await.unwrap()
}

pub async fn read(response: Response<Incoming>) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
