//! An API server for tests: objects by path, with versions, and what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Bytes};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// All copies are one server.
#[derive(Clone, Default)]
pub(super) struct FakeApi(Arc<Mutex<FakeObjects>>, Arc<Notify>);

#[derive(Default)]
struct FakeObjects {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Paths that have this are answered with that.
    refused: Vec<(String, u16)>,
    /// Kinds that can be listed and watched, by their plural.
    served: BTreeSet<String>,
    /// Those whose lists are never answered.
    hanging: BTreeSet<String>,
    /// Those whose next watch is answered with 410.
    expired: BTreeSet<String>,
    calls: Vec<String>,
}

impl FakeApi {
    pub(super) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| api.clone().respond(request));
        kube::Client::new(service, "default")
    }

    /// Serves it at this address, for clients whose connections matter.
    pub(super) async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let api = api.clone();
                let service = service_fn(move |request| api.clone().respond(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    async fn respond<B>(self, request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible>
    where
        B: HttpBody<Data = Bytes, Error: Debug>,
    {
        let (head, body) = request.into_parts();
        if let Some(answer) = self.listed(&head.uri).await {
            return Ok(Response::new(Full::new(Bytes::from(answer.to_string() + "\n"))));
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = self.0.lock().unwrap().answer(&head.method, head.uri.path(), body);
        let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
        *response.status_mut() = status.try_into().unwrap();
        Ok(response)
    }

    /// Answers calls whose path has this part with an error of this status.
    pub(super) fn refuses(&self, part: &str, status: u16) {
        self.0.lock().unwrap().refused.push((part.to_owned(), status));
    }

    /// Refuses nothing any more.
    pub(super) fn refuses_nothing(&self) {
        self.0.lock().unwrap().refused.clear();
    }

    /// Lets these kinds be listed and watched. A watch tells nothing but that it has expired.
    pub(super) fn serves(&self, plurals: &[&str]) {
        let plurals = plurals.iter().map(|plural| (*plural).to_owned());
        self.0.lock().unwrap().served.extend(plurals);
    }

    /// Answers no list of this kind any more.
    pub(super) fn hangs(&self, plural: &str) {
        self.0.lock().unwrap().hanging.insert(plural.to_owned());
    }

    /// Answers lists of this kind again.
    pub(super) fn answers(&self, plural: &str) {
        self.0.lock().unwrap().hanging.remove(plural);
    }

    /// Answers one watch of this kind, the one that is open or the next, with 410 Gone.
    pub(super) fn expires(&self, plural: &str) {
        self.0.lock().unwrap().expired.insert(plural.to_owned());
        self.1.notify_waiters();
    }

    /// The answer to a list or to a watch of a kind that is served.
    async fn listed(&self, uri: &hyper::Uri) -> Option<Value> {
        let plural = uri.path().rsplit('/').next()?.to_owned();
        let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        if !self.0.lock().unwrap().served.contains(&plural) {
            return None;
        }
        let verb = if is_watch { "WATCH" } else { "LIST" };
        self.0.lock().unwrap().calls.push(format!("{verb} {}", uri.path()));
        loop {
            let notified = self.1.notified();
            {
                let mut objects = self.0.lock().unwrap();
                if is_watch && objects.expired.remove(&plural) {
                    return Some(json!({"type": "ERROR", "object": error(410).1}));
                }
                if !is_watch && !objects.hanging.contains(&plural) {
                    return Some(objects.list(&plural));
                }
            }
            if !is_watch {
                pending::<()>().await;
            }
            notified.await;
        }
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    pub(super) fn get(&self, path: &str) -> Value {
        self.0.lock().unwrap().objects.get(path).cloned().unwrap_or_default()
    }

    /// How many calls had this method and a path with this part.
    pub(super) fn calls(&self, method: &str, part: &str) -> usize {
        let objects = self.0.lock().unwrap();
        let calls = objects.calls.iter();
        calls.filter(|call| call.starts_with(method) && call.contains(part)).count()
    }
}

/// Waits until this holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

impl FakeObjects {
    fn list(&self, plural: &str) -> Value {
        let part = format!("/{plural}/");
        let items = self.objects.iter().filter(|(path, _)| path.contains(&part));
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items})
    }

    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        self.calls.push(format!("{method} {path}"));
        let refused = self.refused.iter().find(|(part, _)| path.contains(part.as_str()));
        if let Some((_, status)) = refused {
            return error(*status);
        }
        let part = path.strip_suffix("/status");
        let named = match *method {
            Method::POST => {
                format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default())
            }
            _ => part.unwrap_or(path).to_owned(),
        };
        let old = self.objects.get(&named).cloned();
        let mut new = match (method.as_str(), old) {
            ("GET", Some(old)) => return (200, old),
            ("POST", Some(_)) => return error(409),
            ("POST", None) => body,
            ("PUT", Some(old)) => {
                let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                if version(&old) != version(&body) {
                    return error(409);
                }
                body
            }
            ("PATCH", Some(mut old)) => {
                old["status"] = body["status"].clone();
                old
            }
            _ => return error(404),
        };
        self.version += 1;
        new["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(named, new.clone());
        (200, new)
    }
}

fn error(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Refused" };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": "refused", "reason": reason, "code": code,
    });
    (code, status)
}
