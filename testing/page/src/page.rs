//! The actions of a person on the live page, and made-up data of a store.

use anyhow::Result;
use serde_json::{Value, json};

use crate::browser::Browser;

/// The page's words for a stream that runs.
pub const LIVE: &str = "Live";

/// Opens the page of the store at this admin port and waits until it is live.
///
/// # Errors
/// When it is not live within 30 s.
pub fn open(browser: &Browser, admin_port: u16) -> Result<()> {
    browser.open(&address(admin_port))?;
    browser.wait_for("#connection", LIVE).map(drop)
}

/// The address of the page.
#[must_use]
pub fn address(admin_port: u16) -> String {
    format!("http://127.0.0.1:{admin_port}/")
}

/// Opens the dialog of a policy's dial, fills it in, and reads the confirmation.
///
/// # Errors
/// When the policy is not there, or the form complains.
pub fn review_dial(browser: &Browser, policy: &str, fields: &[(&str, &str)]) -> Result<String> {
    browser.click(&format!("button[aria-label='Dial {policy}']"))?;
    for (field, value) in fields {
        set(browser, &format!("#dial-{field}"), value)?;
    }
    browser.fill("#dial-by", "ada")?;
    browser.click("#dial-form button.main")?;
    browser.wait_for("#confirm-words", policy)
}

/// Opens the dialog of an override at a partition of the tables, fills it in, and reads the
/// confirmation.
///
/// # Errors
/// When the partition is not there.
pub fn review_override(
    browser: &Browser,
    partition: &str,
    quota: &str,
    time: &str,
) -> Result<String> {
    browser.click(&format!("#fullest button[title='{partition}']"))?;
    browser.fill("#override-quota", quota)?;
    browser.fill("#override-for", time)?;
    browser.fill("#override-by", "ada")?;
    browser.click("#override-form button.main")?;
    browser.wait_for("#confirm-words", partition)
}

/// Agrees to the confirmation and waits for the outcome.
///
/// # Errors
/// When the change is not made.
pub fn agree(browser: &Browser) -> Result<String> {
    browser.click("#confirm-do")?;
    browser.wait_for("#outcome", "Done:")
}

/// Sets a field of a form, a `select` by its value.
///
/// # Errors
/// When the field is not there.
pub fn set(browser: &Browser, selector: &str, value: &str) -> Result<()> {
    let is_select = "return document.querySelector(arguments[0]).tagName === 'SELECT'";
    if browser.run(is_select, vec![json!(selector)])? == json!(true) {
        let choose = "const at = document.querySelector(arguments[0]); at.value = arguments[1]; \
                      at.dispatchEvent(new Event('change', {bubbles: true}))";
        return browser.run(choose, vec![json!(selector), json!(value)]).map(drop);
    }
    browser.fill(selector, value)
}

/// Gives every page that is opened from now on this snapshot, twice a second, and these overrides
/// and changes, instead of the store's. All other requests of the page go to the store.
///
/// # Errors
/// When the browser is gone.
pub fn make_up(
    browser: &Browser,
    snapshot: &Value,
    overrides: &Value,
    history: &Value,
) -> Result<()> {
    let made = json!({"snapshot": snapshot, "lists": {"/v1/overrides": overrides, "/v1/history": history}});
    browser.run_before_pages(&format!(
        "(() => {{ const made = {made}; const real = window.fetch; window.made = made;
          window.fetch = (path, options) => {{
            if (path === '/v1/events') {{
              const bytes = new TextEncoder();
              const body = new ReadableStream({{ start(stream) {{
                const send = () => {{
                  if (!made.silent) stream.enqueue(bytes.encode(`data: ${{JSON.stringify({{...made.snapshot, at_ms: Date.now()}})}}\\n\\n`));
                }};
                send();
                const timer = setInterval(send, 500);
                options.signal.addEventListener('abort', () => {{ clearInterval(timer); stream.error(options.signal.reason); }});
              }} }});
              return Promise.resolve(new Response(body));
            }}
            const list = made.lists[path.split('?')[0]];
            if (list && !options.method) return Promise.resolve(Response.json(list));
            return real(path, options);
          }}; }})()"
    ))
}

/// A snapshot with every field, for one domain; `name` is the name of the partitions.
#[must_use]
pub fn full_snapshot(name: &str) -> Value {
    let policy = |name: &str, mode: &str| {
        json!({"name": name, "quota": 5, "window_s": 60, "stagger": false, "mode": mode,
            "on_failure": "allow", "seen_ms": 0})
    };
    let usage = |policy: &str, used: u64, quota: Option<u64>| {
        json!({"domain": "shop", "policy": policy, "partition": name, "used": used, "quota": quota,
            "quota_from": "dial", "window_s": 60, "reset_ms": 42_000})
    };
    let publisher = |kind: &str| json!({"id": name, "kind": kind, "host": name, "since_ms": 0});
    json!({
        "at_ms": 0, "faults": ["Redis is unreachable"], "warnings": ["maxmemory-policy is not noeviction"],
        "documents": ["filters refuse the policy document of shop"],
        "mixed": ["shop has 2 documents: 1 of 3 proxies has 0123456789ab; they differ in log-ins"],
        "backend": "redis-cluster", "calls_per_s": 12.5, "call_ms": 0.7,
        "boards": [{"domain": "shop", "version": 7, "durable": false, "overrides": 1,
            "policies": [policy("per-caller", "enforce"), policy("per-key", "shadow"), policy("search", "off")],
            "dials": [{"policy": "per-caller", "quota": 8, "remaining_ms": 3_540_000, "by": name, "at_ms": 1},
                {"policy": "*", "mode": "shadow", "by": name, "at_ms": 2}]}],
        "rates": [{"domain": "shop", "policy": "per-caller", "admitted": [1.0, 2.0, 3.0], "refused": [0.0, 1.0, 0.5],
            "shadow_refused": [0.0, 1.0, 0.5], "marked": [0.0, 0.0, 0.0], "missing_identity": [0.0, 0.2, 0.2], "store_error": [0.0, 8.0, 0.0]}],
        "top": {"fullest": [usage("per-caller", 8, Some(8)), usage("per-key", 3, None)],
            "refused": [{"domain": "shop", "policy": "per-caller", "partition": name, "requests": 9, "error": 2}],
            "would_refuse": [{"domain": "shop", "policy": "per-key", "partition": name, "requests": 4, "error": 0}],
            "publishers": [publisher("store"), publisher("proxy")],
            "incomplete": "what 1 of 2 others counted cannot be read"}
    })
}

/// One override of this partition.
#[must_use]
pub fn one_override(name: &str) -> Value {
    json!([{"domain": "shop", "policy": "per-caller", "partition": name, "allow": "blocked",
        "remaining_ms": 600_000, "by": name, "at_ms": 3}])
}

/// One change, in these words.
#[must_use]
pub fn one_change(name: &str) -> Value {
    json!([{"at_ms": 4, "by": name, "done": name}])
}
