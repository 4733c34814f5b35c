//! Why the admin address rejects a request.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use quotagate_store::server::{Refusal as BodyRefusal, STORE_HEADER};

use quotagate_operate::Fault;
use quotagate_operate::api::ErrorReply;
use quotagate_store::server::{DomainScope, OperatorRole};
use serde_json::Value;

/// Why a request is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The path does not exist.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// A proxy calls the admin address.
    #[error(
        "this is a store's admin address, which is for operators: proxies must use its call address (--listen of `quotagate serve`)"
    )]
    AdminAddress,
    /// The path takes only these methods.
    #[error("this path takes {0} only")]
    Method(String),
    /// The token is missing or wrong.
    #[error("the bearer token is missing or wrong")]
    Token,
    /// A trusted proxy names a person without a role.
    #[error(
        "{name} is in no group that has a role here: add group:NAME ROLE DOMAINS to the file of \
         --admin-token-file for one of the groups"
    )]
    Groups {
        /// The person.
        name: String,
    },
    /// The operator's role is too small for this path.
    #[error("{who} has the role {has}, and this takes the role {wants}")]
    Role {
        /// The operator.
        who: String,
        /// The operator's greatest role.
        has: OperatorRole,
        /// The role of the path.
        wants: OperatorRole,
    },
    /// The operator has no such role in this domain.
    #[error("{who} has no role for this in the domain {domain:?}: name one of {scope}")]
    Scope {
        /// The operator.
        who: String,
        /// The domain that the request names.
        domain: String,
        /// The domains of the operator.
        scope: DomainScope,
    },
    /// A change that was refused, with what it would have changed.
    #[error("{refusal}")]
    Change {
        /// The change as it was sent.
        wish: Value,
        /// Why it was refused.
        refusal: Box<Refusal>,
    },
    /// The request names a host that is not a known name of this address.
    #[error(
        "{0:?} is not a name of this address: use its IP address or localhost, or start the store with \
         --admin-host and this name"
    )]
    Host(String),
    /// Other machines can reach the admin address, and there is no token.
    #[error(
        "other machines can reach the admin address and no token is set, so dials, overrides and usage are not served: \
         give the store a token (--admin-token-file), or keep --admin on loopback or a Unix socket"
    )]
    Open,
    /// A web page of another site calls.
    #[error("a page of another site calls: its Origin or Sec-Fetch-Site header says so")]
    Origin,
    /// Too many clients listen to events.
    #[error("{0} clients already listen to events")]
    Listeners(usize),
    /// Too many requests of this operator, or of all, are under way.
    #[error(
        "the store already carries out as many {what} as it allows, of {who} or of all operators: try again in a second"
    )]
    Busy {
        /// The operator.
        who: String,
        /// Requests that are under way.
        what: &'static str,
    },
    /// A change that is not JSON.
    #[error("a change needs Content-Type: application/json")]
    NotJson,
    /// The server failed.
    #[error("the store failed")]
    Failed,
    /// The body or a parameter cannot be read.
    #[error(transparent)]
    Body(#[from] BodyRefusal),
    /// The operator's request is well-formed, but cannot be carried out.
    #[error(transparent)]
    Wish(#[from] Fault),
}

/// What the audit log says of a refused request. It is in the extensions of the response.
#[derive(Clone, Debug)]
pub struct RefusedTry {
    /// Why it was refused.
    pub error: String,
    /// The change that it would have made.
    pub wish: Option<Value>,
}

impl Refusal {
    /// A parameter of the query is wrong.
    pub fn parameter(name: &str, reason: impl Into<String>) -> Self {
        Self::Body(BodyRefusal::Malformed { field: name.to_owned(), reason: reason.into() })
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::AdminAddress | Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Open
            | Self::Origin
            | Self::Groups { .. }
            | Self::Role { .. }
            | Self::Scope { .. } => StatusCode::FORBIDDEN,
            Self::Change { refusal, .. } => refusal.status(),
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Listeners(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Body(refusal) => refusal.status(),
            Self::Wish(fault) => match fault {
                Fault::Invalid { .. } => StatusCode::BAD_REQUEST,
                Fault::Unknown { .. } | Fault::Absent(_) => StatusCode::NOT_FOUND,
                Fault::Full(_) | Fault::InUse(_) | Fault::Contended => StatusCode::CONFLICT,
                Fault::Store(error) if error.is_outage() => StatusCode::SERVICE_UNAVAILABLE,
                Fault::Store(_) => StatusCode::BAD_GATEWAY,
            },
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if let Self::Change { wish, refusal } = self {
            let mut response = refusal.into_response();
            if let Some(refused) = response.extensions_mut().get_mut::<RefusedTry>() {
                refused.wish = Some(wish);
            }
            return response;
        }
        let refused = RefusedTry { error: self.to_string(), wish: None };
        let mut reply = ErrorReply { error: self.to_string(), ..ErrorReply::default() };
        let status = self.status();
        let header = match self {
            Self::Method(methods) => {
                HeaderValue::try_from(methods).ok().map(|methods| (ALLOW, methods))
            }
            Self::Busy { .. } => Some((RETRY_AFTER, HeaderValue::from_static("1"))),
            Self::Token => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::Groups { .. } | Self::Role { .. } => {
                reply.field = Some("role".to_owned());
                None
            }
            Self::Scope { .. } => {
                reply.field = Some("domain".to_owned());
                None
            }
            Self::Body(refusal) => {
                reply.field = refusal.field().map(str::to_owned);
                None
            }
            Self::Wish(
                Fault::Invalid { field, known, .. } | Fault::Unknown { field, known, .. },
            ) => {
                (reply.field, reply.known) = (Some(field.to_owned()), known);
                None
            }
            _ => None,
        };
        let mut response = (status, [(STORE_HEADER, "1")], Json(reply)).into_response();
        response.headers_mut().extend(header);
        response.extensions_mut().insert(refused);
        response
    }
}
