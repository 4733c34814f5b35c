//! Takes the pictures of the live page for README and docs: `cargo xtask screenshot [DIRECTORY]`.
//!
//! Real traffic of several callers on several policies, one dial, one override. It writes
//! `live-page.png` and `live-policy.png` in `docs`. In another directory it also
//! writes `dark.png`, `narrow.png` and `dialog.png`, for inspection.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_page::browser::{Browser, Scheme};
use quotagate_page::page;
use quotagate_page::rig::Rig;
use quotagate_support::http::Request;
use quotagate_support::{jwt, paths};
use serde_json::{Value, json};

/// How long traffic runs before the picture is taken: a part of the chart's five minutes.
const TRAFFIC: Duration = Duration::from_secs(75);
const PAUSE: Duration = Duration::from_millis(25);

fn main() -> Result<()> {
    let docs = paths::root().join("docs");
    let directory = std::env::args_os().nth(1).map_or_else(|| docs.clone(), PathBuf::from);
    let rig = Rig::start(document())?;
    let traffic = rig.traffic(requests()?, PAUSE);
    let browser = Browser::start()?;
    browser.screen(1280, 1760, Scheme::Light)?;
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#policies", "per-caller")?;
    page::review_dial(&browser, "per-caller", &[("quota", "150"), ("for", "1h")])?;
    page::agree(&browser)?;
    page::review_override(&browser, "jwt.sub=carol", "400", "2h")?;
    page::agree(&browser)?;
    browser.click("#outcome button")?;
    std::thread::sleep(TRAFFIC);
    browser.run("document.activeElement.blur(); scrollTo(0, 0)", vec![])?;
    browser.screenshot(&directory.join("live-page.png"))?;
    if directory != docs {
        more(&browser, &directory)?;
    }
    browser.screen(1280, 1040, Scheme::Light)?;
    page::open_at(&browser, rig.store.admin_port(), "policy=per-caller")?;
    browser.wait_for("#refused", "jwt.sub")?;
    browser.screenshot(&directory.join("live-policy.png"))?;
    traffic.end()
}

fn more(browser: &Browser, directory: &Path) -> Result<()> {
    browser.screen(1280, 1180, Scheme::Dark)?;
    browser.screenshot(&directory.join("dark.png"))?;
    browser.screen(360, 2400, Scheme::Light)?;
    browser.screenshot(&directory.join("narrow.png"))?;
    browser.screen(1280, 800, Scheme::Light)?;
    page::review_dial(browser, "search", &[("mode", "off"), ("for", "30m")])?;
    browser.screenshot(&directory.join("dialog.png")).context("the dialog")
}

fn document() -> Value {
    let policy = |name: &str, path: &str, by: Value, quota: u64, window: &str, mode: &str| {
        json!({
            "name": name, "match": {"path": {"prefix": path}}, "partition_by": by, "quota": quota,
            "window": window, "mode": mode
        })
    };
    let caller = json!(["caller"]);
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "10s", "on_failure": "allow"},
        "identities": {"caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}]},
        "policies": [
            policy("per-caller", "/", caller.clone(), 100, "1m", "enforce"),
            policy("search", "/search", json!([]), 30, "10s", "enforce"),
            policy("reports-trial", "/reports", caller.clone(), 20, "1m", "shadow"),
            policy("per-day", "/", caller, 50_000, "1d", "enforce")
        ]
    })
}

/// Some callers send more requests than others.
fn requests() -> Result<Vec<Request>> {
    let callers =
        ["alice", "bob", "alice", "carol", "alice", "dave", "erin", "alice", "bob", "frank"];
    let paths =
        ["/items", "/search?q=1", "/items", "/reports/daily", "/search?q=2", "/cart", "/items"];
    let pairs = callers.iter().zip(paths.iter().cycle());
    let mut all = pairs
        .map(|(name, path)| Ok(Request::get(path).bearer(&jwt::token(name)?)))
        .collect::<Result<Vec<_>>>()?;
    all.push(Request::get("/search?q=3"));
    Ok(all)
}
