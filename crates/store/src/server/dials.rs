//! `GET /v1/dials?domain=..` of the call address: what filters are told, and what they tell of themselves.

use std::sync::Arc;

use hyper::{Request, Response, StatusCode};
use quotagate_quota::protocol::dials::REPORT_HEADER;

use super::App;
use super::admin::guard::is_of_page;
use super::query::Query;
use super::reply::{Payload, Refusal, json};
use crate::operate::is_domain;

/// Answers a filter.
///
/// # Errors
/// Where it may not ask, names no domain, too many others are asked for, or the dials of its domain were never read.
pub async fn serve<B>(app: &Arc<App>, request: &Request<B>) -> Result<Response<Payload>, Refusal> {
    app.authorize(request.headers())?;
    if is_of_page(request.headers()) {
        return Err(Refusal::Page);
    }
    let domain = Query::of(request.uri()).get("domain").filter(|domain| is_domain(domain));
    let domain = domain.ok_or_else(|| Refusal::Malformed {
        field: "domain".to_owned(),
        reason: "must be 1 to 64 of the characters a-z 0-9 . _ -".to_owned(),
    })?;
    let cached = app.operate.wanted(&domain).await.map_err(Refusal::Domains)?;
    // Nothing is decided by a report, so that one which cannot be read is as none.
    let report = request.headers().get(REPORT_HEADER).and_then(|text| cached.learn(text.as_bytes()));
    if let Some(report) = &report {
        app.watch.reported(&domain, report);
    }
    if report.is_some() && cached.is_due() {
        let (app, cached) = (Arc::clone(app), Arc::clone(&cached));
        app.tasks.clone().spawn(async move { app.operate.write_down(&cached).await });
    }
    let reply = cached.reply().ok_or_else(|| Refusal::Down("the dials cannot be read".to_owned()))?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}
