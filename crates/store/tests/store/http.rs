//! Requests to a server that a test started.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use quotagate_store::server::ListenAddr;
use serde_json::Value;
use tokio::net::TcpStream;

pub fn host(address: &ListenAddr) -> String {
    let ListenAddr::Tcp(address) = address else { panic!("over TCP only") };
    address.to_string()
}

/// Sends a request on its own connection.
pub async fn send(address: &ListenAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TokioIo::new(TcpStream::connect(host(address)).await.unwrap());
    let (mut send, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send.send_request(request).await.unwrap()
}

/// The status, and the body as JSON if possible, else as text.
pub async fn read(response: Response<Incoming>) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
