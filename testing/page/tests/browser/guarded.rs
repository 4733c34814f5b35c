//! Access control: who may see and change data.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use anyhow::Result;
use quotagate_page::browser::Browser;
use quotagate_page::page;
use quotagate_page::rig::Rig;
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: &str = "s3cret-of-the-operators";

fn guarded() -> Result<(StoreProcess, TempDir)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n"))?;
    let store = StoreProcess::start("memory:", &["--admin-token-file", &file.to_string_lossy()])?;
    Ok((store, directory))
}

/// The store's answer at this path, requested without the page.
fn stored(store: &StoreProcess, path: &str) -> Result<Value> {
    Client::connect(store.admin_port())?.send(&Request::get(path).bearer(TOKEN))?.json()
}

#[test]
fn token_is_required_to_see_anything() -> Result<()> {
    let (store, _directory) = guarded()?;
    let browser = Browser::start()?;
    browser.open(&page::address(store.admin_port()))?;
    browser.wait_for("#connection", "Needs the token")?;
    assert_eq!(browser.text("#content")?, "", "nothing is shown");
    browser.fill("#token", "a guess")?;
    browser.click("#token-form button")?;
    browser.wait_for("#trouble", "The store refused this token. Nothing was changed.")?;
    browser.fill("#token", TOKEN)?;
    browser.click("#token-form button")?;
    browser.wait_for("#connection", page::LIVE)?;
    browser.wait_for("#no-policies", "No filter has reported yet")?;
    let leaks = "return [location.href, ...performance.getEntries().map((e) => e.name), document.cookie, JSON.stringify(localStorage), document.documentElement.outerHTML].filter((text) => text.includes(arguments[0])).length";
    assert_eq!(
        browser.run(leaks, vec![json!(TOKEN)])?,
        0,
        "the token is in no address and in no document"
    );
    // A second tab does not share the token.
    browser.click("#forget")?;
    browser.wait_for("#connection", "Needs the token")?;
    assert_eq!(browser.text("#content")?, "");
    assert_eq!(
        browser.run("return JSON.stringify(sessionStorage).includes('s3cret')", vec![])?,
        false
    );
    Ok(())
}

#[test]
fn what_one_token_could_see_is_gone_when_another_one_comes() -> Result<()> {
    let (store, _directory) = guarded()?;
    let browser = Browser::start()?;
    let usage = json!({"found": [{"domain": "pay", "policy": "payments", "partition": "jwt.sub=alice", "used": 7,
        "quota": 9, "quota_from": "policy", "window_s": 60, "reset_ms": 42_000, "mode": "enforce"}]});
    browser.run_before_pages(&format!(
        "window.usage = {usage}; const real = window.fetch;
         window.fetch = (path, options) => path.startsWith('/v1/usage')
           ? Promise.resolve(Response.json(window.usage ?? {{error: 'not yours'}}, {{status: window.usage ? 200 : 403}})) : real(path, options)"
    ))?;
    browser.open(&format!("{}?party=jwt.sub%3Dalice", page::address(store.admin_port())))?;
    let log_in = || {
        browser.wait_for("#connection", "Needs the token")?;
        browser.fill("#token", TOKEN)?;
        browser.click("#token-form button")?;
        browser.wait_for("#connection", page::LIVE)
    };
    log_in()?;
    browser.wait_for("#party", "payments")?;
    browser.run("window.usage = undefined", vec![])?;
    browser.click("#forget")?;
    log_in()?;
    browser.wait_for("#party-trouble", "Not yours")?;
    assert_eq!(browser.text("#party")?, "");
    Ok(())
}

#[test]
fn change_with_a_revoked_token_is_rejected_visibly() -> Result<()> {
    let (store, _directory) = guarded()?;
    let browser = Browser::start()?;
    page::make_up(&browser, &page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    page::open(&browser, store.admin_port())?;
    page::review_dial(&browser, "per-caller", &[("mode", "off")])?;
    browser.click("#confirm-do")?;
    browser.wait_for(
        "#dial-error",
        "The bearer token is missing or wrong: type the token at the top of the page",
    )?;
    browser.wait_for("#connection", "Needs the token")?;
    assert_eq!(stored(&store, "/v1/boards")?, json!([]));
    Ok(())
}

#[test]
fn faults_of_the_store_are_shown_at_their_field() -> Result<()> {
    let (_store, browser) =
        page::open_made_up(&page::full_picture("jwt.sub=alice"), &json!([]), &json!([]))?;
    // The store has no policy. The test made the page show one.
    page::review_dial(&browser, "per-caller", &[("quota", "7")])?;
    browser.click("#confirm-do")?;
    browser.wait_for("#dial-error", "Domain: no filter has reported a domain \"shop\".")?;
    let closed =
        "return [document.querySelector('#confirm').open, document.querySelector('#dial').open]";
    assert_eq!(browser.run(closed, vec![])?, json!([false, true]), "back in the form");
    for (field, value, words) in [
        ("#dial-quota", "many", "Write a whole number, 0 or more."),
        ("#dial-for", "soon", "Write a time from 1s to 366d, such as 15m, or leave it empty."),
        ("#dial-by", " ", "Write your name: the change is logged with it."),
    ] {
        browser.fill(field, value)?;
        browser.click("#dial-form button.main")?;
        browser.wait_for("#dial-error", words)?;
        let at = "return `#${document.activeElement.id}`";
        assert_eq!(browser.run(at, vec![])?, field, "the focus is where the fault is");
        let good = if field == "#dial-quota" { "7" } else { "" };
        browser.fill(field, good)?;
    }
    Ok(())
}

/// The attacks that a page of another origin could try on the store at `at`. Returns the result of
/// each.
const ATTACKS: &str = "
    const [at, policy, partition] = given;
    const by = 'evil';
    const become = (promise) => promise.then((r) => (r.type === 'opaque' ? 'sent' : `${r.status}`), (e) => e.name);
    const dial = JSON.stringify({policy, mode: 'off', by});
    const override = JSON.stringify({policy, partition, allow: 'unlimited', by});
    const reset = JSON.stringify({policy, partition, by});
    const json = {'content-type': 'application/json'};
    return [
      await become(fetch(`${at}v1/boards`, {credentials: 'include'})),
      await become(fetch(`${at}v1/dials`, {method: 'PUT', headers: json, body: dial, credentials: 'include'})),
      await become(fetch(`${at}v1/overrides`, {method: 'PUT', headers: json, body: override, credentials: 'include'})),
      await become(fetch(`${at}v1/reset`, {method: 'POST', headers: json, body: reset, credentials: 'include'})),
      await become(fetch(`${at}v1/reset`, {method: 'POST', mode: 'no-cors', body: reset, credentials: 'include'})),
    ]";

const FORM: &str = "
    const form = document.createElement('form');
    form.action = `${arguments[0]}v1/reset`; form.method = 'post'; form.enctype = 'text/plain';
    const field = document.createElement('input');
    field.name = JSON.stringify({policy: arguments[1], partition: arguments[2], by: 'evil'}).slice(0, -1) + ',\"x\":\"';
    field.value = '\"}';
    form.append(field); document.body.append(form); form.submit()";

#[test]
fn page_of_another_origin_can_neither_read_nor_change_anything() -> Result<()> {
    let document = json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "10s", "on_failure": "deny"},
        "identities": {"caller": [{"client_ip": {}}]},
        "policies": [{"name": "per-caller", "partition_by": ["caller"], "quota": 1, "window": "366d"}]
    });
    let rig = Rig::start(document)?;
    let request = Request::get("/");
    assert_eq!((rig.status(&request)?, rig.status(&request)?), (200, 429));
    let browser = Browser::start()?;
    page::open(&browser, rig.store.admin_port())?;
    browser.wait_for("#policies", "per-caller")?;
    let given = [page::address(rig.store.admin_port()).as_str(), "per-caller", "ip=127.0.0.1"]
        .map(|text| json!(text));

    let elsewhere = Upstream::start()?;
    browser.open(&format!("http://127.0.0.1:{}/", elsewhere.port()))?;
    let became = browser.run_async(ATTACKS, given.to_vec())?;
    assert_eq!(became, json!(["TypeError", "TypeError", "TypeError", "TypeError", "sent"]));
    browser.run(FORM, given.to_vec())?;
    browser.wait_for("body", "error")?;
    assert_eq!(stored(&rig.store, "/v1/history")?, json!([]));
    assert_eq!(rig.status(&request)?, 429);

    // The same requests succeed from the page's own origin.
    page::open(&browser, rig.store.admin_port())?;
    let became = browser.run_async(ATTACKS, given.to_vec())?;
    assert_eq!(became, json!(["200", "200", "200", "200", "415"]));
    assert_eq!(stored(&rig.store, "/v1/history")?.as_array().map(Vec::len), Some(3));
    Ok(())
}

#[test]
fn rebound_host_name_is_rejected() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let browser = Browser::start_with(&["--host-resolver-rules=MAP evil.example 127.0.0.1"])?;
    let at = format!("http://evil.example:{}/", store.admin_port());
    browser.open(&at)?;
    browser.wait_for("body", "is not a name of this address")?;
    let became =
        browser.run_async(ATTACKS, vec![json!(at), json!("per-caller"), json!("ip=127.0.0.1")])?;
    assert_eq!(became, json!(["421", "421", "421", "421", "421"]));
    assert_eq!(stored(&store, "/v1/boards")?, json!([]));
    Ok(())
}

/// A proxy in front of the port `to` that asks for a cookie, which `/login` sets, and says who has
/// it. Returns its port.
fn log_in_proxy(to: u16) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A browser that has gone away is no fault.
            thread::spawn(move || forward(client, to));
        }
    });
    Ok(port)
}

/// Forwards the only request of a connection.
fn forward(mut client: TcpStream, to: u16) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut is_known) = (String::new(), false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let name = line.split(':').next().unwrap_or_default().to_lowercase();
        is_known |= name == "cookie" && line.contains("session=1");
        match name.as_str() {
            "connection" => {}
            _ if line.trim().is_empty() => break,
            _ => head += &line,
        }
    }
    if head.starts_with("GET /login ") {
        let answer = "HTTP/1.1 303 See Other\r\nlocation: /\r\nset-cookie: session=1; HttpOnly; SameSite=Strict\r\n\
                      content-length: 0\r\nconnection: close\r\n\r\n";
        return client.write_all(answer.as_bytes());
    }
    if !is_known {
        let answer = "HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return client.write_all(answer.as_bytes());
    }
    let mut store = TcpStream::connect(("127.0.0.1", to))?;
    let own = "connection: close\r\nx-forwarded-email: ann@example.com\r\nx-forwarded-groups: ops\r\n\r\n";
    store.write_all(format!("{head}{own}").as_bytes())?;
    let mut answers = store.try_clone()?;
    let mut back = client.try_clone()?;
    thread::spawn(move || {
        io::copy(&mut answers, &mut back).and_then(|_| back.shutdown(std::net::Shutdown::Both))
    });
    io::copy(&mut reader, &mut store).map(drop)
}

#[test]
fn page_works_behind_a_log_in_proxy_without_a_token() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("operators");
    std::fs::write(&file, "group:ops operate shop\n")?;
    let file = file.to_string_lossy();
    let flags = ["--auth-header", "x-forwarded-email", "--auth-from", "127.0.0.1"];
    let store =
        StoreProcess::start("memory:", &[&["--admin-token-file", &*file][..], &flags].concat())?;
    for (domain, policy) in [("shop", "per-caller"), ("pay", "payments")] {
        let report = json!({"policies": [{"name": policy, "quota": 5, "window_s": 60, "stagger": false,
            "mode": "enforce", "on_failure": "allow"}]});
        let request =
            Request::post(&format!("/v1/telemetry?domain={domain}"), report.to_string().as_bytes());
        assert_eq!(Client::connect(store.port())?.send(&request)?.status, 200);
    }
    let browser = Browser::start()?;
    page::open(&browser, log_in_proxy(store.admin_port())?)?;
    browser.wait_for("#policies", "per-caller")?;
    assert!(!browser.text("#content")?.contains("payments"), "Ann may not see it");
    page::review_dial(&browser, "per-caller", &[("mode", "off")])?;
    browser.click("#confirm-do")?;
    browser.wait_for("#history", "ann@example.com")?;
    Ok(())
}
