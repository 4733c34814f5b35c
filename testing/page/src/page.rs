//! The actions of a person on the live page, and made-up data of a store.

use anyhow::Result;
use quotagate_support::store::StoreProcess;
use serde_json::{Map, Value, json};

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

/// Opens what is behind this query of the page's address, and waits until it is live.
///
/// # Errors
/// When it is not live within 30 s.
pub fn open_at(browser: &Browser, admin_port: u16, query: &str) -> Result<()> {
    browser.open(&format!("{}?{query}", address(admin_port)))?;
    browser.wait_for("#connection", LIVE).map(drop)
}

/// The address in the browser, after the `?`.
///
/// # Errors
/// When the browser is gone.
pub fn query(browser: &Browser) -> Result<String> {
    let query = browser.run("return location.search.slice(1)", vec![])?;
    Ok(query.as_str().unwrap_or_default().to_owned())
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

/// Gives every page that is opened from now on this picture, twice a second, and these overrides
/// and changes, instead of the store's. Each `ends_ms` of the picture counts from when the page was
/// opened. All other requests of the page go to the store, but those of `window.made.lists`.
///
/// # Errors
/// When the browser is gone.
pub fn make_up(
    browser: &Browser,
    picture: &Value,
    overrides: &Value,
    history: &Value,
) -> Result<()> {
    let documents = published_documents("ann");
    let lists =
        json!({"/v1/overrides": overrides, "/v1/history": history, "/v1/documents": documents});
    let made = json!({"picture": picture, "lists": lists});
    let made = json!(made.to_string());
    browser.run_before_pages(&format!(
        "(() => {{ const start = performance.now(); const made = JSON.parse({made}); const real = window.fetch; window.made = made;
          // What this takes itself, in milliseconds.
          made.own = performance.now() - start;
          const begun = Date.now();
          const ends = (name, value) => (name === 'ends_ms' ? begun + value : value);
          window.fetch = (path, options) => {{
            if (path === '/v1/events') {{
              const bytes = new TextEncoder();
              const body = new ReadableStream({{ start(stream) {{
                const send = () => {{
                  const start = performance.now();
                  if (!made.silent) stream.enqueue(bytes.encode(`event: whole\\ndata: ${{JSON.stringify({{...made.picture, at_ms: Date.now()}}, ends)}}\\n\\n`));
                  made.own += performance.now() - start;
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

/// A store of its own, and a browser with its page that shows what is made up.
///
/// # Errors
/// When the page is not live within 30 s.
pub fn open_made_up(
    picture: &Value,
    overrides: &Value,
    history: &Value,
) -> Result<(StoreProcess, Browser)> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start()?;
    make_up(&browser, picture, overrides, history)?;
    open(&browser, store.admin_port())?;
    Ok((store, browser))
}

/// The rows of a list, by domain, policy and partition.
#[must_use]
pub fn rows(list: &[Value]) -> Value {
    let text = |of: &Value, field: &str| {
        of.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let key = |of: &Value| ["domain", "policy", "partition"].map(|field| text(of, field)).join(" ");
    Value::Object(list.iter().map(|of| (key(of), of.clone())).collect())
}

/// A picture with every field, for one domain; `name` is the name of the partitions.
#[must_use]
pub fn full_picture(name: &str) -> Value {
    let policy = |name: &str, mode: &str| {
        json!({"name": name, "quota": 5, "window_s": 60, "stagger": false, "mode": mode,
            "on_failure": "allow", "seen_ms": 4_000_000_000_000_u64, "digest": "0123456789ab"})
    };
    let usage = |policy: &str, used: u64, quota: Value| {
        json!({"domain": "shop", "policy": policy, "partition": name, "used": used, "quota": quota,
            "quota_from": "dial", "window_s": 60, "ends_ms": 42_000})
    };
    let publisher = |kind: &str| json!({"id": name, "kind": kind, "host": name, "since_ms": 0});
    json!({
        "at_ms": 0, "step": 1001, "last_step": 1000,
        "faults": ["Redis is unreachable"], "warnings": ["maxmemory-policy is not noeviction"],
        "documents": ["filters refuse the policy document of shop"],
        "mixed": ["shop has 2 documents: 1 of 3 proxies has 0123456789ab; they differ in log-ins"],
        "backend": "redis-cluster", "calls_per_s": 12.5, "call_ms": 0.7,
        "domains": {"shop": {"version": 7, "durable": false, "overrides": 1,
            "policies": {"per-caller": policy("per-caller", "enforce"), "per-key": policy("per-key", "shadow"),
                "search": policy("search", "off")},
            "dials": {
                "per-caller": {"policy": "per-caller", "quota": 8, "ends_ms": 3_580_000, "by": name, "at_ms": 1},
                "*": {"policy": "*", "mode": "shadow", "by": name, "at_ms": 2}},
            "requests": {"per-caller": {"998": [5], "999": [10, 0, 5, 0, 1, 40], "1000": [15, 0, 2, 0, 1]}},
            "documents": {"proxies": 3, "live": 2, "documents": [{"digest": "0123456789ab", "proxies": 1}]}}},
        "fullest": rows(&[usage("per-caller", 8, json!(8)), usage("per-key", 3, Value::Null)]),
        "refused": rows(&[json!({"domain": "shop", "policy": "per-caller", "partition": name, "requests": 9, "error": 2})]),
        "would_refuse": rows(&[json!({"domain": "shop", "policy": "per-key", "partition": name, "requests": 4, "error": 0})]),
        "publishers": {"a": publisher("store"), "b": publisher("proxy")},
        "incomplete": "what 1 of 2 others counted cannot be read"
    })
}

/// A picture of so many domains with so many policies in all. The last policy of the last domain
/// has the most refusals, and the first one of the first domain has no requests.
#[must_use]
pub fn large_picture(domains: usize, policies: usize) -> Value {
    let name = |n: usize| format!("policy-{n}");
    let policy = |n: usize| {
        json!({"name": name(n), "quota": 100, "window_s": 60, "stagger": false, "mode": "enforce",
            "on_failure": "allow", "seen_ms": 4_000_000_000_000_u64})
    };
    let requests = |n: usize| {
        let refused = if n + 1 == policies { 50 } else { n % 9 };
        let steps = (941..=1000).filter(|_| n > 0);
        steps.map(|step: usize| (step.to_string(), json!([n, refused]))).collect()
    };
    let each = policies.div_ceil(domains);
    let domain = |first: usize| {
        let all = first..policies.min(first + each);
        let policies: Map<_, _> = all.clone().map(|n| (name(n), policy(n))).collect();
        let requests: Map<_, _> = all.map(|n| (name(n), Value::Object(requests(n)))).collect();
        json!({"version": 0, "durable": true, "overrides": 0, "policies": policies, "dials": {},
            "requests": requests, "documents": {"proxies": 0, "documents": []}})
    };
    let all = (0..policies).step_by(each).map(|n| (format!("shop-{}", n / each), domain(n)));
    let mut picture = full_picture("jwt.sub=alice");
    if let Value::Object(fields) = &mut picture {
        fields.insert("domains".to_owned(), Value::Object(all.collect()));
        for list in ["fullest", "refused", "would_refuse"] {
            fields.insert(list.to_owned(), json!({}));
        }
    }
    picture
}

/// A document that was published by this name, with a proxy in each state.
#[must_use]
pub fn published_documents(name: &str) -> Value {
    let proxy = |n: u64, number: u64, state: &str, refuses: u64| {
        json!({"proxy": format!("{n:016x}"), "digest": format!("{number:012x}"), "number": number, "live": true,
            "state": state, "refuses": refuses, "workers": [{"worker": 0, "since_ms": 2}, {"worker": 3, "since_ms": 1}]})
    };
    json!({
        "domain": "shop", "durable": true, "in_force": {"proxies": 4, "documents": []},
        "documents": [{"number": 7, "digest": "0123456789ab", "by": name, "at_ms": 1}],
        "taken_up": {"have": 1, "live": 3},
        "proxies": [proxy(1, 6, "behind", 0), proxy(2, 6, "behind", 7), proxy(3, 7, "published", 0)],
        "silent": [{"proxy": format!("{:016x}", 4), "digest": "0123456789ab", "last_ms": 1}]
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
