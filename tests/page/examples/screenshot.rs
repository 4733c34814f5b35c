//! Takes the picture of the live page for the README: `cargo xtask screenshot [DIRECTORY]`.
//!
//! Real traffic of several callers on several policies for about half a minute, one dial, one override. `live-page.png` is in
//! light; with `DIRECTORY`, which is `docs` unless given, come no others unless it is another one: then `dark.png` and `narrow.png` too.

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
    browser.screen(1280, 1180, Scheme::Light)?;
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
    let policy = |name: &str, path: &str, quota: u64, window: &str| json!({"name": name, "match": {"path": {"prefix": path}}, "partition_by": ["caller"], "quota": quota, "window": window});
    let mut trial = policy("reports-trial", "/reports", 20, "1m");
    trial["mode"] = json!("shadow");
    let mut search = policy("search", "/search", 30, "10s");
    search["partition_by"] = json!([]);
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "10s", "on_failure": "allow"},
        "identities": {"caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}]},
        "policies": [policy("per-caller", "/", 100, "1m"), search, trial, policy("per-day", "/", 50_000, "1d")]
    })
}

/// Some callers ask more often than others.
fn requests() -> Result<Vec<Request>> {
    let mut all = Vec::new();
    for (index, name) in ["alice", "bob", "alice", "carol", "alice", "dave", "erin", "alice", "bob", "frank"]
        .iter()
        .enumerate()
    {
        let path = ["/items", "/search?q=1", "/items", "/reports/daily", "/search?q=2", "/cart"][index % 6];
        all.push(Request::get(path).bearer(&jwt::token(name)?));
    }
    all.push(Request::get("/search?q=3"));
    Ok(all)
}
