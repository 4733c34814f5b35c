//! The paths under `/v1/` of the admin address, each with the role that it requires.
//!
//! A path cannot be added without a role, and a handler reads the parameters of its request with
//! [`Asked`] or [`Body`], which check the domain and wait for an [`AdminPermit`]. Where a request
//! names none, [`Asked::domains`] and [`Asked::one`] give the domains that the operator may see.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::http::{Extensions, Method};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Json, Router};
use quotagate_protocol::dials::{ALL_POLICIES, MAX_DOCUMENT};
use quotagate_store::server::{DomainScope, OperatorRole, read_json, receive};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::Refusal;
use super::events;
use super::operator::Access;
use super::permits::AdminPermit;
use crate::control::Control;
use quotagate_operate::api::{self, Changed, MAX_REASON};
use quotagate_operate::watch::Wanted;
use quotagate_operate::{Author, Counters, DomainNames, Fault, HistoryFilter, clean, clean_text};

/// Largest body of a change, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// The same of a document that is published.
const MAX_PUBLISHED: usize = MAX_DOCUMENT + MAX_BODY;
/// Changes listed without a `limit`.
const CHANGES: usize = 50;
/// Partitions in each list without a `limit`.
const LISTED: usize = 10;

type AdminState = State<Arc<Control>>;
type Reply<T> = Result<Json<T>, Refusal>;

/// A method of a path.
struct Route {
    role: OperatorRole,
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of all paths reads it"))]
    method: Method,
    path: &'static str,
    handler: MethodRouter<Arc<Control>>,
}

/// All paths and methods under `/v1/`.
fn routes() -> Vec<Route> {
    use OperatorRole::{Admin, Operate, Publish, View};
    vec![
        route(View, Method::GET, api::BOARDS, boards),
        route(Operate, Method::PUT, api::DIALS, set_dial),
        route(Operate, Method::DELETE, api::DIALS, clear_dial),
        route(View, Method::GET, api::OVERRIDES, overrides),
        route(Operate, Method::PUT, api::OVERRIDES, set_override),
        route(Operate, Method::DELETE, api::OVERRIDES, clear_override),
        route(View, Method::GET, api::DOCUMENTS, documents),
        route(View, Method::GET, api::DOCUMENT_TEXT, document_text),
        route(Publish, Method::POST, api::DOCUMENTS, publish_document),
        route(Publish, Method::DELETE, api::DOCUMENTS, withdraw_document),
        route(View, Method::GET, api::HISTORY, history),
        route(View, Method::GET, api::USAGE, usage),
        route(View, Method::GET, api::PARTIES, parties),
        route(Operate, Method::POST, api::RESET, reset),
        route(Operate, Method::POST, api::RELEASE, release),
        route(View, Method::GET, api::TOP, top),
        route(View, Method::GET, api::REQUESTS, requests),
        route(View, Method::GET, api::DOMAINS, domains),
        route(Admin, Method::DELETE, api::DOMAINS, forget_domain),
        route(View, Method::GET, api::EVENTS, events::serve),
    ]
}

fn route<H, T>(role: OperatorRole, method: Method, path: &'static str, handler: H) -> Route
where
    H: Handler<T, Arc<Control>>,
    T: 'static,
{
    // Every method of `routes` has a filter.
    let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET);
    Route { role, method, path, handler: on(filter, handler) }
}

/// The paths under `/v1/`.
pub fn router() -> Router<Arc<Control>> {
    routes().into_iter().fold(Router::new(), |router, Route { role, path, handler, .. }| {
        let guarded = from_fn(move |request, next| require(role, request, next));
        router.route(path, handler.route_layer(guarded))
    })
}

/// Passes a request on if its operator has this role in a domain.
async fn require(
    role: OperatorRole,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let access = Access::in_extensions(request.extensions())?.with_role(role)?;
    request.extensions_mut().insert(access);
    Ok(next.run(request).await)
}

async fn boards(State(app): AdminState, asked: Asked) -> Reply<Vec<api::Board>> {
    Ok(Json(app.operate.boards.read_of(asked.domains(&app).await?).await?))
}

async fn set_dial(State(app): AdminState, body: Body<api::SetDial>) -> Reply<Changed> {
    change(app, body, async move |app, wish| {
        let made = app.operate.dials.set(&wish).await?;
        app.operate.watch.forget(&made.domain, &wish.policy);
        Ok(made)
    })
    .await
}

async fn clear_dial(State(app): AdminState, body: Body<api::ClearDial>) -> Reply<Changed> {
    change(app, body, async move |app, wish| {
        let made = app.operate.dials.clear(&wish).await?;
        app.operate.watch.forget(&made.domain, &wish.policy);
        Ok(made)
    })
    .await
}

async fn overrides(State(app): AdminState, asked: Asked) -> Reply<Vec<api::OverrideEntry>> {
    let (policy, limit) = (asked.policy(), asked.limit.unwrap_or(usize::MAX));
    let domains = asked.domains(&app).await?;
    let found = app.operate.overrides.list_of(domains.clone(), policy, limit).await?;
    if let Some(policy) = policy.filter(|policy| found.is_empty() && *policy != ALL_POLICIES) {
        app.operate.directory.check_policy(&domains, policy).await?;
    }
    Ok(Json(found))
}

async fn set_override(State(app): AdminState, body: Body<api::SetOverride>) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.overrides.set(&wish).await).await
}

async fn clear_override(State(app): AdminState, body: Body<api::ClearOverride>) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.overrides.clear(&wish).await).await
}

async fn documents(State(app): AdminState, asked: Asked) -> Reply<api::PublishedDocuments> {
    let domain = asked.of_documents(&app).await?;
    Ok(Json(app.operate.document_status(domain.as_deref()).await?))
}

async fn document_text(State(app): AdminState, asked: Asked) -> Reply<api::DocumentText> {
    let domain = asked.of_documents(&app).await?;
    Ok(Json(app.operate.documents.text(domain.as_deref(), asked.number).await?))
}

async fn publish_document(
    State(app): AdminState,
    body: Body<api::PublishDocument>,
) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.documents.publish(&wish).await).await
}

async fn withdraw_document(
    State(app): AdminState,
    body: Body<api::WithdrawDocument>,
) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.documents.withdraw(&wish).await).await
}

async fn history(State(app): AdminState, asked: Asked) -> Reply<Vec<api::Event>> {
    let limit = asked.limit.unwrap_or(CHANGES);
    let filter = HistoryFilter {
        policy: asked.policy(),
        party: asked.partition.as_deref(),
        by: asked.by.as_deref(),
        since_ms: asked.since_ms,
    };
    let domain = asked.one(&app).await?;
    Ok(Json(app.operate.history.find(domain.as_deref(), filter, limit).await?))
}

async fn usage(State(app): AdminState, asked: Asked) -> Reply<api::UsageReply> {
    let sight = app.operate.fleet.look().await;
    let partition = asked.partition.as_deref().unwrap_or_default();
    let domains = asked.domains(&app).await?;
    Ok(Json(asked.counters(&app).usage_of(domains, partition, &sight).await?))
}

async fn parties(State(app): AdminState, asked: Asked) -> Reply<api::PartiesPage> {
    let Some(policy) = asked.policy() else {
        return Err(Refusal::parameter("policy", "is required"));
    };
    let domain = asked.one(&app).await?;
    let sight = app.operate.fleet.look().await;
    let (domain, from) = (domain.as_deref(), asked.from.as_deref());
    Ok(Json(asked.counters(&app).parties(domain, policy, from, &sight).await?))
}

async fn release(State(app): AdminState, body: Body<api::Release>) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.counters.release(&wish).await).await
}

async fn reset(State(app): AdminState, body: Body<api::Reset>) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.counters.reset(&wish).await).await
}

async fn top(State(app): AdminState, asked: Asked) -> Reply<api::Top> {
    let (domain, policy) = (asked.domain(), asked.policy());
    let sight = app.operate.fleet.look().await;
    let scope = match &asked.access.scope {
        DomainScope::All => None,
        scope @ DomainScope::Some(_) => Some(scope),
    };
    let wanted = Wanted { domain, policy, scope };
    let mut top = sight.top(wanted, asked.limit.unwrap_or(LISTED));
    // An empty reply to a misspelt name would look like a policy without traffic.
    if top.is_empty() {
        match (domain, policy) {
            (_, Some(policy)) => {
                let domains = asked.domains(&app).await?;
                app.operate.directory.check_policy(&domains, policy).await?;
            }
            (Some(_), None) => drop(asked.domains(&app).await?),
            (None, None) => {}
        }
    }
    top.slots = sight.slots(top.fullest.iter()).await;
    Ok(Json(top))
}

async fn requests(State(app): AdminState, asked: Asked) -> Reply<api::MinuteRequests> {
    let Some(policy) = asked.policy() else {
        return Err(Refusal::parameter("policy", "is required"));
    };
    let domain = asked.one(&app).await?;
    let domain = app.operate.directory.domain(domain.as_deref()).await?;
    app.operate.directory.check_policy(&domain.clone().into(), policy).await?;
    Ok(Json(app.operate.fleet.minutes(&domain, policy, events::now_ms())))
}

async fn domains(State(app): AdminState, asked: Asked) -> Reply<Vec<api::DomainInfo>> {
    let mut found = app.operate.domains.list(&app.operate.fleet.look().await).await?;
    found.retain(|info| asked.access.scope.has(&info.domain));
    Ok(Json(found))
}

async fn forget_domain(State(app): AdminState, body: Body<api::ForgetDomain>) -> Reply<Changed> {
    change(app, body, async move |app, wish| app.operate.domains.forget(&wish).await).await
}

/// Makes a change in its own task, so that a closed connection does not stop it half-way.
async fn change<T, F>(
    app: Arc<Control>,
    body: Body<T>,
    make: impl FnOnce(Arc<Control>, T) -> F,
) -> Reply<Changed>
where
    F: Future<Output = Result<Changed, Fault>> + Send + 'static,
{
    let Body { wish, author, sent, permit } = body;
    let make = author.makes(make(Arc::clone(&app), wish));
    let made = app.connections.spawn(async move {
        let made = make.await;
        drop(permit);
        made
    });
    let made = made.await.map_err(|_| Refusal::Failed).and_then(|made| Ok(made?));
    made.map(Json).map_err(|refusal| Refusal::Change { wish: sent, refusal: refusal.into() })
}

impl Access {
    /// What the layers around a handler have found out.
    fn in_extensions(extensions: &Extensions) -> Result<Self, Refusal> {
        extensions.get::<Self>().cloned().ok_or(Refusal::Failed)
    }
}

/// The parameters of the query. An empty name counts as absent.
struct Asked {
    access: Access,
    domain: Option<String>,
    policy: Option<String>,
    partition: Option<String>,
    from: Option<String>,
    by: Option<String>,
    since_ms: Option<u64>,
    number: Option<u64>,
    limit: Option<usize>,
    /// Whether the last windows that have ended are meant.
    last: bool,
    /// Ends with the request.
    _permit: AdminPermit,
}

impl Asked {
    /// The counters of the current windows, or of the last ones.
    fn counters(&self, app: &Control) -> Counters {
        let counters = &app.operate.counters;
        if self.last { counters.last() } else { counters.clone() }
    }

    fn domain(&self) -> Option<&str> {
        self.domain.as_deref().filter(|name| !name.is_empty())
    }

    fn policy(&self) -> Option<&str> {
        self.policy.as_deref().filter(|name| !name.is_empty())
    }

    /// The domains to read, see [`readable`].
    async fn domains(&self, app: &Control) -> Result<DomainNames, Refusal> {
        readable(app, &self.access.scope, self.domain()).await
    }

    /// The only domain to read, see [`only`].
    async fn one(&self, app: &Control) -> Result<Option<String>, Refusal> {
        only(app, &self.access.scope, self.domain()).await
    }

    /// The same for published documents, whose domain no proxy needs to have reported.
    async fn of_documents(&self, app: &Control) -> Result<Option<String>, Refusal> {
        only_of_documents(app, &self.access.scope, self.domain()).await
    }
}

/// The same as [`only`] for published documents, whose domain no proxy needs to have reported. The
/// operator may see the domain that the request names.
async fn only_of_documents(
    app: &Control,
    scope: &DomainScope,
    given: Option<&str>,
) -> Result<Option<String>, Refusal> {
    match (given, scope) {
        (Some(domain), _) => Ok(Some(domain.to_owned())),
        (None, DomainScope::Some(names)) if names.len() == 1 => Ok(names.first().cloned()),
        _ => only(app, scope, None).await,
    }
}

/// The domain to forget: one that is known, or that has published documents.
async fn forgotten(
    app: &Control,
    scope: &DomainScope,
    given: &str,
) -> Result<Option<String>, Refusal> {
    match only(app, scope, Some(given)).await {
        Err(unknown) => {
            let records = app.operate.documents.records(given).await?;
            if records.is_empty() { Err(unknown) } else { Ok(Some(given.to_owned())) }
        }
        known => known,
    }
}

/// The domains of a request: the one that it names, or all of `scope` that are known.
///
/// # Errors
/// If the domain is not known. The text names no domain that the operator may not see.
async fn readable(
    app: &Control,
    scope: &DomainScope,
    given: Option<&str>,
) -> Result<DomainNames, Refusal> {
    let directory = &app.operate.directory;
    let Some(given) = given else {
        let mut known = directory.named().await?;
        known.names.retain(|domain| scope.has(domain));
        return Ok(known);
    };
    match directory.domain(Some(given)).await {
        Err(Fault::Unknown { field, reason, mut known }) => {
            known.retain(|domain| scope.has(domain));
            Err(Fault::Unknown { field, reason, known }.into())
        }
        found => Ok(found?.into()),
    }
}

/// The domain that a request names, or the only one that the operator may touch. `None` stands for
/// the only one of all, where the operator may touch all.
///
/// # Errors
/// If there is none, or several, or if others may be missing.
async fn only(
    app: &Control,
    scope: &DomainScope,
    given: Option<&str>,
) -> Result<Option<String>, Refusal> {
    if *scope == DomainScope::All {
        return Ok(given.map(str::to_owned));
    }
    let DomainNames { mut names, incomplete } = readable(app, scope, given).await?;
    match (names.len(), incomplete) {
        (1, None) => Ok(names.pop()),
        (0, None) => {
            let reason = format!("no filter has reported one of the domains {scope} yet");
            Err(Fault::Unknown { field: "domain", reason, known: Vec::new() }.into())
        }
        (_, why) => {
            let why = why.unwrap_or_else(|| "several domains are known".to_owned());
            let reason = format!("{why}: name one");
            Err(Fault::Invalid { field: "domain", reason, known: names }.into())
        }
    }
}

impl FromRequestParts<Arc<Control>> for Asked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<Control>) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Texts {
            domain: Option<String>,
            policy: Option<String>,
            partition: Option<String>,
            from: Option<String>,
            by: Option<String>,
            since_ms: Option<String>,
            number: Option<String>,
            limit: Option<String>,
            last: Option<String>,
        }
        let access = Access::in_extensions(&parts.extensions)?;
        let texts = Query::<Texts>::try_from_uri(&parts.uri);
        let Query(Texts { domain, policy, partition, from, by, since_ms, number: of, limit, last }) =
            texts.map_err(|rejection| Refusal::parameter("query", rejection.body_text()))?;
        let number =
            |name: &'static str| move |_| Refusal::parameter(name, "must be a whole number");
        let limit = limit.map(|limit| limit.parse()).transpose().map_err(number("limit"))?;
        let since_ms = since_ms.map(|since| since.parse()).transpose();
        let since_ms = since_ms.map_err(number("since_ms"))?;
        let of = of.map(|of| of.parse()).transpose().map_err(number("number"))?;
        let last = last.map_or(Ok(false), |last| last.parse());
        let last = last.map_err(|_| Refusal::parameter("last", "must be true or false"))?;
        if let Some(domain) = domain.as_ref().filter(|name| !name.is_empty()) {
            access.check(domain)?;
        }
        let permit = app.permits.acquire(parts.uri.path(), &access).await?;
        Ok(Self {
            access,
            domain,
            policy,
            partition,
            from,
            by,
            since_ms,
            number: of,
            limit,
            last,
            _permit: permit,
        })
    }
}

/// The body of a change. Its domain is one that the operator may change, and its `by` is the name
/// of the operator if that is known.
struct Body<T> {
    wish: T,
    author: Author,
    /// As it was sent, for the audit log.
    sent: Value,
    permit: AdminPermit,
}

impl<T: DeserializeOwned> FromRequest<Arc<Control>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<Control>) -> Result<Self, Refusal> {
        let access = Access::in_extensions(request.extensions())?;
        let path = request.uri().path().to_owned();
        let most = if path == api::DOCUMENTS { MAX_PUBLISHED } else { MAX_BODY };
        let bytes = receive(request.into_body(), most).await?;
        let sent: Value = read_json(&bytes)?;
        let refused =
            |refusal: Refusal| Refusal::Change { wish: sent.clone(), refusal: refusal.into() };
        // A body that comes slowly keeps no permit from others.
        let permit = app.permits.acquire(&path, &access).await.map_err(refused)?;
        Self::of(&access, app, &sent, &path, permit).await.map_err(refused)
    }
}

impl<T: DeserializeOwned> Body<T> {
    /// What was sent to this path.
    async fn of(
        access: &Access,
        app: &Control,
        sent: &Value,
        path: &str,
        permit: AdminPermit,
    ) -> Result<Self, Refusal> {
        // A list would be read as the fields in their order, so that their names could not be
        // checked.
        let Value::Object(mut fields) = sent.clone() else {
            return Err(Refusal::parameter(".", "must be a JSON object"));
        };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Null) | None => Ok(None),
            Some(_) => Err(Refusal::parameter(name, "must be a text")),
        };
        let (by, reason, domain) = (text("by")?, text("reason")?, text("domain")?);
        if let Some(domain) = &domain {
            access.check(domain)?;
        }
        let (scope, given) = (&access.scope, domain.as_deref());
        let domain = match (path, given) {
            (api::DOCUMENTS, _) => only_of_documents(app, scope, given).await?,
            (api::DOMAINS, Some(given)) => forgotten(app, scope, given).await?,
            _ => only(app, scope, given).await?,
        };
        if let Some(domain) = &domain {
            fields.insert("domain".to_owned(), domain.as_str().into());
        }
        if let Some(name) = access.operator.name.clone().or_else(|| by.clone()) {
            fields.insert("by".to_owned(), name.into());
        }
        let said = by.map(|by| clean(&by));
        let reason = reason.map(|reason| clean_text(&reason, MAX_REASON));
        let reason = reason.filter(|reason| !reason.is_empty());
        Ok(Self {
            wish: read_json(&Value::Object(fields).to_string().into_bytes())?,
            author: access.author(domain.as_deref(), said, reason),
            sent: sent.clone(),
            permit,
        })
    }
}

#[cfg(test)]
mod tests;
