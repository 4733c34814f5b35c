//! The paths under `/v1/` of the admin address.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use quotagate_store::server::{read_json, receive};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::Refusal;
use super::events;
use crate::control::Control;
use quotagate_operate::api::{self, Changed};
use quotagate_operate::watch::Wanted;
use quotagate_operate::{CallSight, Fault};

/// Largest body of a change, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Changes listed without a `limit`.
const CHANGES: usize = 50;
/// Partitions in each list without a `limit`.
const LISTED: usize = 10;

type AdminState = State<Arc<Control>>;
type Reply<T> = Result<Json<T>, Refusal>;

/// The paths under `/v1/`.
pub fn router() -> Router<Arc<Control>> {
    Router::new()
        .route(api::BOARDS, get(boards))
        .route(api::DIALS, put(set_dial).delete(clear_dial))
        .route(api::OVERRIDES, get(overrides).put(set_override).delete(clear_override))
        .route(api::HISTORY, get(history))
        .route(api::USAGE, get(usage))
        .route(api::RESET, post(reset))
        .route(api::TOP, get(top))
        .route(api::DOMAINS, get(domains).delete(forget_domain))
        .route(api::EVENTS, get(events::serve))
}

async fn boards(State(app): AdminState, asked: Asked) -> Reply<Vec<api::Board>> {
    Ok(Json(app.operate.boards.read_all(asked.domain()).await?))
}

async fn set_dial(State(app): AdminState, Body(wish): Body<api::SetDial>) -> Reply<Changed> {
    change(app, async move |app| {
        let made = app.operate.dials.set(&wish).await?;
        app.operate.watch.forget(&made.domain, &wish.policy);
        Ok(made)
    })
    .await
}

async fn clear_dial(State(app): AdminState, Body(wish): Body<api::ClearDial>) -> Reply<Changed> {
    change(app, async move |app| {
        let made = app.operate.dials.clear(&wish).await?;
        app.operate.watch.forget(&made.domain, &wish.policy);
        Ok(made)
    })
    .await
}

async fn overrides(State(app): AdminState, asked: Asked) -> Reply<Vec<api::OverrideEntry>> {
    let (domain, policy) = (asked.domain(), asked.policy());
    let found =
        app.operate.overrides.list(domain, policy, asked.limit.unwrap_or(usize::MAX)).await?;
    if let Some(policy) = policy.filter(|_| found.is_empty()) {
        app.operate.directory.check_policy(domain, policy).await?;
    }
    Ok(Json(found))
}

async fn set_override(
    State(app): AdminState,
    Body(wish): Body<api::SetOverride>,
) -> Reply<Changed> {
    change(app, async move |app| app.operate.overrides.set(&wish).await).await
}

async fn clear_override(
    State(app): AdminState,
    Body(wish): Body<api::ClearOverride>,
) -> Reply<Changed> {
    change(app, async move |app| app.operate.overrides.clear(&wish).await).await
}

async fn history(State(app): AdminState, asked: Asked) -> Reply<Vec<api::Event>> {
    let limit = asked.limit.unwrap_or(CHANGES);
    Ok(Json(app.operate.history.list(asked.domain(), limit).await?))
}

async fn usage(State(app): AdminState, asked: Asked) -> Reply<api::UsageReply> {
    let sight = app.operate.fleet.look().await;
    let calls = CallSight {
        last: &|key, number| app.operate.watch.quota(key, number),
        beyond: &|beyond, key| sight.beyond_of(beyond, key),
    };
    let partition = asked.partition.as_deref().unwrap_or_default();
    Ok(Json(app.operate.counters.usage(asked.domain(), partition, calls).await?))
}

async fn reset(State(app): AdminState, Body(wish): Body<api::Reset>) -> Reply<Changed> {
    change(app, async move |app| app.operate.counters.reset(&wish).await).await
}

async fn top(State(app): AdminState, asked: Asked) -> Reply<api::Top> {
    let (domain, policy) = (asked.domain(), asked.policy());
    let sight = app.operate.fleet.look().await;
    let top = sight.top(Wanted { domain, policy }, asked.limit.unwrap_or(LISTED));
    // An empty reply to a misspelt name would look like a policy without traffic.
    if top.is_empty() {
        match (domain, policy) {
            (_, Some(policy)) => app.operate.directory.check_policy(domain, policy).await?,
            (Some(domain), None) => drop(app.operate.directory.domain(Some(domain)).await?),
            (None, None) => {}
        }
    }
    Ok(Json(top))
}

async fn domains(State(app): AdminState) -> Reply<Vec<api::DomainInfo>> {
    Ok(Json(app.operate.domains.list().await?))
}

async fn forget_domain(
    State(app): AdminState,
    Body(wish): Body<api::ForgetDomain>,
) -> Reply<Changed> {
    change(app, async move |app| app.operate.domains.forget(&wish).await).await
}

/// Makes a change in its own task, so that a closed connection does not stop it half-way.
async fn change<F>(app: Arc<Control>, make: impl FnOnce(Arc<Control>) -> F) -> Reply<Changed>
where
    F: Future<Output = Result<Changed, Fault>> + Send + 'static,
{
    let made = app.connections.spawn(make(Arc::clone(&app)));
    Ok(Json(made.await.map_err(|_| Refusal::Failed)??))
}

/// The parameters of the query. An empty name counts as absent.
struct Asked {
    domain: Option<String>,
    policy: Option<String>,
    partition: Option<String>,
    limit: Option<usize>,
}

impl Asked {
    fn domain(&self) -> Option<&str> {
        self.domain.as_deref().filter(|name| !name.is_empty())
    }

    fn policy(&self) -> Option<&str> {
        self.policy.as_deref().filter(|name| !name.is_empty())
    }
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Texts {
            domain: Option<String>,
            policy: Option<String>,
            partition: Option<String>,
            limit: Option<String>,
        }
        let texts = Query::<Texts>::try_from_uri(&parts.uri);
        let Query(Texts { domain, policy, partition, limit }) =
            texts.map_err(|rejection| Refusal::parameter("query", rejection.body_text()))?;
        let limit = limit.map(|limit| limit.parse()).transpose();
        let limit = limit.map_err(|_| Refusal::parameter("limit", "must be a whole number"))?;
        Ok(Self { domain, policy, partition, limit })
    }
}

/// The body of a change.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        Ok(Self(read_json(&receive(request.into_body(), MAX_BODY).await?)?))
    }
}
