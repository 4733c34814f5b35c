//! What the paths under `/v1/` of the admin address do.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{self, Changed};
use crate::operate::Fault;
use crate::server::App;
use crate::server::body::{read, receive};
use crate::server::events;
use crate::server::query::Query;
use crate::server::reply::{Payload, Refusal, json};

/// Largest body of a change, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Changes that are listed where nobody says how many.
const CHANGES: usize = 50;
/// Partitions of each list where nobody says how many.
const LISTED: usize = 10;

/// Answers an operator who may ask.
///
/// # Errors
/// Why not.
pub async fn serve<B>(app: &Arc<App>, request: Request<B>) -> Result<Response<Payload>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let query = Query::of(&head.uri);
    let domain = query.get("domain");
    let domain = domain.as_deref().filter(|domain| !domain.is_empty());
    let operate = &app.operate;
    match (head.uri.path(), &head.method) {
        (api::BOARDS, &Method::GET) => answer(&operate.boards(domain).await?),
        (api::DIALS, &Method::PUT) => {
            let wish: api::SetDial = wish(body).await?;
            change(app, async move |app| {
                let made = app.operate.set_dial(&wish).await?;
                app.watch.forget(&made.domain, &wish.policy);
                Ok(made)
            })
            .await
        }
        (api::DIALS, &Method::DELETE) => {
            let wish: api::ClearDial = wish(body).await?;
            change(app, async move |app| {
                let made = app.operate.clear_dial(&wish).await?;
                app.watch.forget(&made.domain, &wish.policy);
                Ok(made)
            })
            .await
        }
        (api::OVERRIDES, &Method::GET) => {
            let policy = query.get("policy");
            let policy = policy.as_deref().filter(|policy| !policy.is_empty());
            let limit = query.number("limit")?.unwrap_or(usize::MAX);
            let found = operate.overrides(domain, policy, limit).await?;
            if let Some(policy) = policy.filter(|_| found.is_empty()) {
                operate.check_policy(domain, policy).await?;
            }
            answer(&found)
        }
        (api::OVERRIDES, &Method::PUT) => {
            let wish: api::SetOverride = wish(body).await?;
            change(app, async move |app| app.operate.set_override(&wish).await).await
        }
        (api::OVERRIDES, &Method::DELETE) => {
            let wish: api::ClearOverride = wish(body).await?;
            change(app, async move |app| app.operate.clear_override(&wish).await).await
        }
        (api::USAGE, &Method::GET) => {
            let partition = query.get("partition").unwrap_or_default();
            answer(&operate.usage(domain, &partition, &|key, number| app.watch.quota(key, number)).await?)
        }
        (api::RESET, &Method::POST) => {
            let wish: api::Reset = wish(body).await?;
            change(app, async move |app| app.operate.reset(&wish).await).await
        }
        (api::HISTORY, &Method::GET) => {
            let limit = query.number("limit")?.unwrap_or(CHANGES);
            answer(&operate.history(domain, limit).await?)
        }
        (api::TOP, &Method::GET) => {
            let policy = query.get("policy");
            let policy = policy.as_deref().filter(|policy| !policy.is_empty());
            let top = app.watch.top(domain, policy, query.number("limit")?.unwrap_or(LISTED));
            // An empty answer to a name with a typing error would look like a quiet policy.
            if top.fullest.is_empty() && top.refused.is_empty() {
                match (domain, policy) {
                    (_, Some(policy)) => operate.check_policy(domain, policy).await?,
                    (Some(domain), None) => drop(operate.domain(Some(domain)).await?),
                    (None, None) => {}
                }
            }
            answer(&top)
        }
        (api::DOMAINS, &Method::GET) => answer(&operate.domain_list().await?),
        (api::DOMAINS, &Method::DELETE) => {
            let wish: api::ForgetDomain = wish(body).await?;
            change(app, async move |app| app.operate.forget_domain(&wish).await).await
        }
        (api::EVENTS, &Method::GET) => events::serve(app),
        (path, _) => Err(allowed(path).map_or(Refusal::NoSuchPath, Refusal::Method)),
    }
}

/// Makes a change in a task of its own: a connection that ends does not end it half-way.
async fn change<F>(app: &Arc<App>, make: impl FnOnce(Arc<App>) -> F) -> Result<Response<Payload>, Refusal>
where
    F: Future<Output = Result<Changed, Fault>> + Send + 'static,
{
    let made = app.tasks.spawn(make(Arc::clone(app))).await.map_err(|_| Refusal::Failed)?;
    answer(&made?)
}

/// The methods of a path.
pub(super) fn allowed(path: &str) -> Option<&'static str> {
    match path {
        api::BOARDS | api::HISTORY | api::USAGE | api::TOP | api::EVENTS => Some("GET"),
        api::DIALS => Some("PUT, DELETE"),
        api::DOMAINS => Some("GET, DELETE"),
        api::OVERRIDES => Some("GET, PUT, DELETE"),
        api::RESET => Some("POST"),
        _ => None,
    }
}

async fn wish<T: DeserializeOwned, B>(body: B) -> Result<T, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    read(&receive(body, MAX_BODY).await?)
}

fn answer(value: &impl Serialize) -> Result<Response<Payload>, Refusal> {
    let mut response = json(StatusCode::OK, serde_json::to_vec(value).map_err(|_| Refusal::Failed)?, None);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}
