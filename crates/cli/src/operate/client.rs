//! Calls to the store's admin address: one connection each, five seconds at most, at most 16 MiB of an answer.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quotagate_control::api::{self, Board, ErrorReply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::address::AdminAddr;
use super::failure::Failure;
use super::token::Token;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Speaks to one store.
#[derive(Debug)]
pub(crate) struct Client {
    /// Where it is.
    pub(crate) address: AdminAddr,
    /// What it is shown.
    pub(crate) token: Token,
    /// The domain that is meant; without one, the only one that the store knows.
    pub(crate) domain: Option<String>,
}

/// What the store said.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// Understood.
    pub(crate) value: T,
    /// As it came.
    pub(crate) raw: Bytes,
}

/// What came back, from whatever server it was.
struct Reply {
    status: StatusCode,
    /// Whether an error carries the header of a store.
    is_of_store: bool,
    raw: Bytes,
}

impl Client {
    /// Asks for what `path` holds. Parameters without a value are left out; the domain is added.
    ///
    /// # Errors
    /// When there is no such thing, or no answer of a store.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, Option<&str>)],
    ) -> Result<Answer<T>, Failure> {
        let mut target = path.to_owned();
        let mut mark = '?';
        for (name, value) in parameters.iter().chain(&[("domain", self.domain.as_deref())]) {
            if let Some(value) = value {
                target.push(mark);
                target.push_str(name);
                target.push('=');
                target.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
                mark = '&';
            }
        }
        let policy = parameters.iter().find_map(|(name, value)| value.filter(|_| *name == "policy"));
        self.call(Method::GET, &target, Bytes::new(), policy).await
    }

    /// Makes a change.
    ///
    /// # Errors
    /// When the store refuses it, or there is no answer of a store.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        change: &impl Serialize,
    ) -> Result<Answer<T>, Failure> {
        let body = serde_json::to_value(change).map_err(|error| Failure::Usage(error.to_string()))?;
        let policy = body.get("policy").and_then(Value::as_str);
        self.call(method, path, body.to_string().into(), policy).await
    }

    /// The boards of the domain that is meant, or of all.
    ///
    /// # Errors
    /// When the store does not know the domain, or there is no answer of a store.
    pub(crate) async fn boards(&self) -> Result<Answer<Vec<Board>>, Failure> {
        self.get(api::BOARDS, &[]).await
    }

    /// The domain that is meant, for what must know its name.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub(crate) async fn domain(&self) -> Result<String, Failure> {
        if let Some(domain) = &self.domain {
            return Ok(domain.clone());
        }
        let boards = self.boards().await?.value;
        match boards.as_slice() {
            [board] => Ok(board.domain.clone()),
            [] => Err(Failure::Refused(
                "the store knows no domain yet: a filter tells of its own with its first requests; until then, give it \
                 by --domain"
                    .to_owned(),
            )),
            boards => {
                let names: Vec<&str> = boards.iter().map(|board| board.domain.as_str()).collect();
                let names = names.join(", ");
                Err(Failure::Refused(format!("the store knows several domains: choose one by --domain: {names}")))
            }
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        policy: Option<&str>,
    ) -> Result<Answer<T>, Failure> {
        let Reply { status, is_of_store, raw } = timeout(TIMEOUT, self.exchange(method, target, body))
            .await
            .unwrap_or_else(|_| Err(self.unreachable("no answer within 5 s")))?;
        if status.is_success() {
            return match serde_json::from_slice(&raw) {
                Ok(value) => Ok(Answer { value, raw }),
                Err(_) => Err(self.no_store(status)),
            };
        }
        // Other servers send errors as JSON too.
        match serde_json::from_slice::<ErrorReply>(&raw) {
            Ok(reply) if is_of_store => Err(self.refusal(status, reply, policy)),
            _ => Err(self.no_store(status)),
        }
    }

    async fn exchange(&self, method: Method, target: &str, body: Bytes) -> Result<Reply, Failure> {
        let mut request = Request::builder().method(method).uri(target).header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = self.token.secret() {
            let value = HeaderValue::try_from(format!("Bearer {token}")).map(|mut value| {
                value.set_sensitive(true);
                value
            });
            request = request.header(AUTHORIZATION, value.map_err(|_| self.token.malformed())?);
        }
        let nobody = |error: std::io::Error| self.unreachable(&error.to_string());
        // The store is asked for by its address, whatever name led there: names it may not serve, since a browser can be
        // led to it by a name of somebody else's.
        let whole = |request: hyper::http::request::Builder, host: &str| {
            let request = request.header(HOST, host).body(Full::new(body));
            request.map_err(|error| Failure::Usage(error.to_string()))
        };
        match &self.address {
            AdminAddr::Tcp(authority) => {
                let stream = TcpStream::connect(authority.as_str()).await.map_err(nobody)?;
                let host = stream.peer_addr().map_err(nobody)?.to_string();
                self.over(stream, whole(request, &host)?).await
            }
            AdminAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(nobody)?;
                self.over(stream, whole(request, "localhost")?).await
            }
        }
    }

    async fn over<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<Reply, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |error: hyper::Error| {
            if error.is_parse() {
                Failure::Unreachable(format!("{} speaks no HTTP: {}", self.address, self.elsewhere()))
            } else {
                self.unreachable(&error.to_string())
            }
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Its faults are those of the request.
        let driver = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (status, is_of_store) = (answer.status(), answer.headers().contains_key(api::STORE_HEADER));
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        driver.abort();
        let body = body.map_err(|error| self.unreachable(&format!("the answer broke off: {error}")))?;
        Ok(Reply { status, is_of_store, raw: body.to_bytes() })
    }

    fn elsewhere(&self) -> &'static str {
        "give the store's admin address by --admin host:port or QUOTAGATE_ADMIN"
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::Unreachable(format!(
            "cannot reach the store's admin address {}: {why}\nIs `quotagate serve` running there? If it is elsewhere, {} \
             (far away: the near end of `ssh -L` or `kubectl port-forward`).",
            self.address,
            self.elsewhere()
        ))
    }

    fn no_store(&self, status: StatusCode) -> Failure {
        Failure::Unreachable(format!(
            "{} answered {}, and is not the admin address of a quotagate store: {}",
            self.address,
            status.as_u16(),
            self.elsewhere()
        ))
    }

    /// What the store's refusal means to who made the call, about `policy`.
    fn refusal(&self, status: StatusCode, reply: ErrorReply, policy: Option<&str>) -> Failure {
        let ErrorReply { error, field, known } = reply;
        let error = match field.as_deref() {
            // The flag that gives it.
            Some("for_ms") => error.replacen("for_ms", "--for", 1),
            _ => error,
        };
        if status == StatusCode::UNAUTHORIZED {
            return self.token.refused(&self.address);
        }
        if status.is_server_error() {
            return Failure::Unreachable(format!("the store at {} cannot do it now: {error}", self.address));
        }
        if status == StatusCode::MISDIRECTED_REQUEST {
            return Failure::Unreachable(format!(
                "{}: {error}\nTo reach it, {}.",
                self.address,
                self.elsewhere()
            ));
        }
        if status == StatusCode::NOT_FOUND && known.is_empty() {
            return Failure::Absent(error);
        }
        let of_domain = field.as_deref() == Some("domain");
        let meant = if of_domain { self.domain.as_deref() } else { policy };
        let mut text = error;
        if let Some(near) = meant.and_then(|name| nearest(name, &known)) {
            text = format!("{text}\nDid you mean {near}?");
        }
        if !known.is_empty() {
            text = format!("{text}\nKnown: {}", known.join(", "));
        }
        if of_domain && self.domain.is_none() {
            text.push_str("\nChoose one by --domain or QUOTAGATE_DOMAIN.");
        }
        Failure::Refused(text)
    }
}

/// The one of `known` that `name` is a few slips of the finger away from.
fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k String> {
    let slips = |known: &String| strsim::damerau_levenshtein(name, known);
    known
        .iter()
        .map(|name| (slips(name), name))
        .min()
        .filter(|(n, _)| *n <= name.len() / 3)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_that_is_near() {
        let known = ["per-caller", "log-ins", "per-key"].map(str::to_owned);
        for (name, near) in
            [("per-calle", Some("per-caller")), ("logins", Some("log-ins")), ("x", None), ("other", None)]
        {
            assert_eq!(nearest(name, &known).map(String::as_str), near, "{name}");
        }
    }
}
