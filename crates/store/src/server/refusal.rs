//! Why the server refuses a call, and the answer that says so.

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::grant::DomainScope;
use super::reply::{Payload, json};

/// The header of every error of a store. Commands use it to tell a store from other servers.
pub const STORE_HEADER: &str = "x-quotagate-store";

/// Why a call is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing is at this path.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// An operator called the address for proxies.
    #[error(
        "this is a store's call address, where proxies ask for units: commands, probes and metrics go to its admin address \
         (--admin of `quotagate serve`)"
    )]
    CallAddress,
    /// Another method is needed.
    #[error("this path takes {0} only")]
    Method(&'static str),
    /// The token is missing or wrong.
    #[error("the bearer token is missing or wrong")]
    Token,
    /// The token is for other domains.
    #[error("the token is for calls of {0}: the call names another domain")]
    Domain(DomainScope),
    /// A web page called.
    #[error("calls come from Envoy, not from web pages: send neither Origin nor Sec-Fetch-Site")]
    Page,
    /// The body is too large, or holds too many items.
    #[error("{0}")]
    TooLarge(String),
    /// The body broke off.
    #[error("the body did not arrive: {0}")]
    Body(String),
    /// The body took too long.
    #[error("the body did not arrive within {0} s")]
    Slow(u64),
    /// Too many calls are under way.
    #[error("too many calls are under way")]
    Busy,
    /// Too many replies with a document are on their way.
    #[error("too many documents are on their way: ask again in a second")]
    BusyDocuments,
    /// A field is wrong: which one, and why.
    #[error("{field}: {reason}")]
    Malformed {
        /// The path of the field within the body, or the name of a parameter.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller's budget was over.
    #[error("the budget of {0} ms was over")]
    Late(u32),
    /// The backend cannot be reached.
    #[error("{0}")]
    Down(String),
    /// The server failed.
    #[error("the store failed")]
    Failed,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Refusal {
    /// The status code of the answer, as a number.
    pub const fn code(&self) -> u16 {
        self.status().as_u16()
    }

    /// The status code of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::CallAddress => StatusCode::MISDIRECTED_REQUEST,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Page | Self::Domain(_) => StatusCode::FORBIDDEN,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(_) | Self::Malformed { .. } => StatusCode::BAD_REQUEST,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Down(_) | Self::Busy | Self::BusyDocuments => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The field that is at fault.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Malformed { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The answer with this error.
    pub(super) fn answer(&self) -> Response<Payload> {
        let error = ErrorBody { error: &self.to_string(), field: self.field() };
        let mut response =
            json(self.status(), serde_json::to_vec(&error).unwrap_or_default(), None);
        let extra = match self {
            Self::Method(method) => Some((header::ALLOW, HeaderValue::from_static(method))),
            Self::Token => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ => None,
        };
        response.headers_mut().extend(extra);
        response.headers_mut().insert(STORE_HEADER, HeaderValue::from_static("1"));
        response
    }
}
