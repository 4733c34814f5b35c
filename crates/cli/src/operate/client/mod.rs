//! Calls to the store's admin address. Each takes a connection of its own, five seconds and 16 MiB
//! of answer at most.

mod address;
mod identity;
mod token;

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quotagate_operate::api::{self, Board, DomainInfo, ErrorReply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

pub(crate) use self::address::AdminAddr;
pub(crate) use self::identity::user_at_host;
pub(crate) use self::token::Token;

use super::failure::Failure;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// A client of one store.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The store's admin address.
    pub(crate) address: AdminAddr,
    /// The token to send.
    pub(crate) token: Token,
    /// The domain; without one, the only domain that the store knows.
    pub(crate) domain: Option<String>,
    /// Why changes are made, for the history.
    pub(crate) reason: Option<String>,
}

/// An answer of the store.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// The parsed answer.
    pub(crate) value: T,
    /// Its JSON.
    pub(crate) raw: Bytes,
}

/// An answer of any server, which may not be a store.
struct Reply {
    status: StatusCode,
    /// Whether it has the header that a store puts on its errors.
    is_of_store: bool,
    raw: Bytes,
}

impl Client {
    /// `GET path` with these parameters and the domain. Parameters without a value are left out.
    ///
    /// # Errors
    /// When the store refuses it or has no such entry, or no store answers.
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
        let policy =
            parameters.iter().find_map(|(name, value)| value.filter(|_| *name == "policy"));
        self.call(Method::GET, &target, Bytes::new(), policy).await
    }

    /// Makes a change.
    ///
    /// # Errors
    /// When the store refuses it, or no store answers.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        change: &impl Serialize,
    ) -> Result<Answer<T>, Failure> {
        let mut body =
            serde_json::to_value(change).map_err(|error| Failure::Usage(error.to_string()))?;
        if let (Some(fields), Some(reason)) = (body.as_object_mut(), &self.reason) {
            fields.insert("reason".to_owned(), reason.as_str().into());
        }
        let policy = body.get("policy").and_then(Value::as_str);
        self.call(method, path, body.to_string().into(), policy).await
    }

    /// The board of the domain, or the boards of all domains without one.
    ///
    /// # Errors
    /// When the store does not know the domain, or no store answers.
    pub(crate) async fn boards(&self) -> Result<Answer<Vec<Board>>, Failure> {
        self.get(api::BOARDS, &[]).await
    }

    /// The domains that the store knows: all of them, or the one that is given.
    ///
    /// # Errors
    /// When the store does not know the domain, or no store answers.
    pub(crate) async fn domains(&self) -> Result<Answer<Vec<DomainInfo>>, Failure> {
        let Answer { value, raw } = self.get::<Vec<DomainInfo>>(api::DOMAINS, &[]).await?;
        let Some(name) = &self.domain else { return Ok(Answer { value, raw }) };
        let known: Vec<String> = value.iter().map(|info| info.domain.clone()).collect();
        let value: Vec<DomainInfo> =
            value.into_iter().filter(|info| info.domain == *name).collect();
        if value.is_empty() {
            let unknown = format!("no filter has reported a domain {name:?}");
            return Err(Failure::Refused(suggest(unknown, Some(name), &known)));
        }
        let raw = serde_json::to_vec(&value).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Answer { value, raw: raw.into() })
    }

    /// The name of the domain, for commands that need it.
    ///
    /// # Errors
    /// When none is given and the store knows none, or several.
    pub(crate) async fn domain(&self) -> Result<String, Failure> {
        if let Some(domain) = &self.domain {
            return Ok(domain.clone());
        }
        let boards = self.boards().await?.value;
        match boards.as_slice() {
            [Board { domain, incomplete: None, .. }] => Ok(domain.clone()),
            [Board { incomplete: Some(why), .. }] => Err(Failure::Refused(format!(
                "the answer of the store is not complete, so choose the domain with --domain: {why}"
            ))),
            [] => Err(Failure::Refused(
                "the store knows no domain yet: a filter reports its own with its first requests; until then, name it \
                 with --domain"
                    .to_owned(),
            )),
            boards => {
                let names: Vec<&str> = boards.iter().map(|board| board.domain.as_str()).collect();
                let names = names.join(", ");
                Err(Failure::Refused(format!("the store knows several domains, choose one with --domain: {names}")))
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
        let Reply { status, is_of_store, raw } =
            timeout(TIMEOUT, self.exchange(method, target, body))
                .await
                .unwrap_or_else(|_| Err(self.unreachable("no answer within 5 s")))?;
        if status.is_success() {
            return match serde_json::from_slice(&raw) {
                Ok(value) => Ok(Answer { value, raw }),
                Err(_) => Err(self.no_store(status)),
            };
        }
        // Other servers send errors as JSON, too.
        match serde_json::from_slice::<ErrorReply>(&raw) {
            Ok(reply) if is_of_store => Err(self.refusal(status, reply, policy)),
            _ => Err(self.no_store(status)),
        }
    }

    async fn exchange(&self, method: Method, target: &str, body: Bytes) -> Result<Reply, Failure> {
        let mut request =
            Request::builder().method(method).uri(target).header(ACCEPT, "application/json");
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
        let refused = |error: std::io::Error| self.unreachable(&error.to_string());
        // The host header is the address, not the name in the flag: a store refuses names that it
        // does not know, which protects it from browsers that a foreign name leads to it.
        let whole = |request: hyper::http::request::Builder, host: &str| {
            let request = request.header(HOST, host).body(Full::new(body));
            request.map_err(|error| Failure::Usage(error.to_string()))
        };
        match &self.address {
            AdminAddr::Tcp(authority) => {
                let stream = TcpStream::connect(authority.as_str()).await.map_err(refused)?;
                let host = stream.peer_addr().map_err(refused)?.to_string();
                self.over(stream, whole(request, &host)?).await
            }
            AdminAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(refused)?;
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
                Failure::Unreachable(format!(
                    "{} does not speak HTTP: {}",
                    self.address,
                    self.elsewhere()
                ))
            } else {
                self.unreachable(&error.to_string())
            }
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // An error of the connection is reported by the request.
        let driver = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (status, is_of_store) =
            (answer.status(), answer.headers().contains_key(api::STORE_HEADER));
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        driver.abort();
        let body =
            body.map_err(|error| self.unreachable(&format!("the answer broke off: {error}")))?;
        Ok(Reply { status, is_of_store, raw: body.to_bytes() })
    }

    fn elsewhere(&self) -> &'static str {
        "pass the store's admin address with --admin host:port or QUOTAGATE_ADMIN"
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::Unreachable(format!(
            "cannot reach the store's admin address {}: {why}\nIs `quotagate serve` running there? If it runs elsewhere, {} \
             (on another machine: the local end of `ssh -L` or `kubectl port-forward`).",
            self.address,
            self.elsewhere()
        ))
    }

    fn no_store(&self, status: StatusCode) -> Failure {
        Failure::Unreachable(format!(
            "{} answered {} and is not the admin address of a quotagate store: {}",
            self.address,
            status.as_u16(),
            self.elsewhere()
        ))
    }

    /// The failure behind an error of the store. `policy` is the policy of the request.
    fn refusal(&self, status: StatusCode, reply: ErrorReply, policy: Option<&str>) -> Failure {
        let ErrorReply { error, field, known } = reply;
        let error = match field.as_deref() {
            // The operator knows the flag.
            Some("for_ms") => error.replacen("for_ms", "--for", 1),
            _ => error,
        };
        if status == StatusCode::UNAUTHORIZED {
            return self.token.refused(&self.address);
        }
        if status.is_server_error() {
            return Failure::Unreachable(format!(
                "the store at {} cannot do this now: {error}",
                self.address
            ));
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
        let mut text = suggest(error, meant, &known);
        if of_domain && self.domain.is_none() {
            text.push_str("\nChoose one with --domain or QUOTAGATE_DOMAIN.");
        }
        Failure::Refused(text)
    }
}

/// An error about a name, with the nearest and with all of the known names.
fn suggest(error: String, name: Option<&str>, known: &[String]) -> String {
    let mut text = error;
    if let Some(near) = name.and_then(|name| nearest(name, known)) {
        text = format!("{text}\nDid you mean {near}?");
    }
    if !known.is_empty() {
        text = format!("{text}\nKnown: {}", known.join(", "));
    }
    text
}

/// The known name that is a few typing errors away from `name`.
fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k String> {
    let errors = |known: &&String| strsim::damerau_levenshtein(name, known);
    known.iter().min_by_key(errors).filter(|known| errors(known) <= name.len() / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_few_typing_errors_are_suggested() {
        let known = ["per-caller", "log-ins", "per-key"].map(str::to_owned);
        for (name, near) in [
            ("per-calle", Some("per-caller")),
            ("logins", Some("log-ins")),
            ("x", None),
            ("other", None),
        ] {
            assert_eq!(nearest(name, &known).map(String::as_str), near, "{name}");
        }
    }
}
