//! Named tokens, roles and the audit log, with the commands and the real store.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use quotagate_support::http::{Client, Request};
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::{Value, json};

use super::fleet::{Done, Fleet, PATIENCE, command, run};

/// A store with tokens and an audit log, and the domains `shop` and `pay`.
struct Guarded {
    fleet: Fleet,
    file: PathBuf,
    audit: PathBuf,
    _directory: tempfile::TempDir,
}

/// The secret of a new token, and its line.
fn new_token(arguments: &[&str]) -> (String, String) {
    let done = run(&mut command(&[&["token", "new", "--json"], arguments].concat()), b"");
    assert_eq!(done.status, 0, "{done:?}");
    let made: Value = serde_json::from_str(&done.out).unwrap();
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("secret"), text("line"))
}

impl Guarded {
    fn with(lines: &[&str], arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (file, audit) = (directory.path().join("tokens"), directory.path().join("audit"));
        fs::write(&file, lines.join("\n") + "\n").unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let (tokens, log) = (path(&file), path(&audit));
        let own = ["--admin-token-file", &tokens, "--audit", &log];
        let options = StoreOptions::new("memory:").arguments(&[&own, arguments].concat());
        let fleet = Fleet::silent(&options, None);
        for (domain, policy) in [("shop", "per-caller"), ("pay", "payments")] {
            fleet.tell(domain, &[policy]);
        }
        Self { fleet, file, audit, _directory: directory }
    }

    fn run(&self, secret: &str, arguments: &[&str]) -> Done {
        let mut command = command(arguments);
        let admin = self.fleet.admin();
        run(command.env("QUOTAGATE_ADMIN", admin).env("QUOTAGATE_TOKEN", secret), b"")
    }

    fn done(&self, secret: &str, arguments: &[&str]) -> String {
        let done = self.run(secret, arguments);
        assert_eq!(done.status, 0, "{arguments:?}: {done:?}");
        done.out
    }

    fn refused(&self, secret: &str, arguments: &[&str], says: &str) {
        let done = self.run(secret, arguments);
        assert!(done.status == 1 && done.err.contains(says), "{arguments:?}: {done:?}");
    }

    fn audited(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.audit).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until this token is valid, or is not.
    fn until_valid(&self, secret: &str, is_valid: bool) {
        let ask = || Ok((self.run(secret, &["dial", "list"]).status == 0) == is_valid);
        wait::until_true("the file is read again", PATIENCE, ask).unwrap();
    }
}

#[test]
fn only_the_role_publish_of_its_domain_publishes_documents() {
    let (ann, ann_line) = new_token(&["ann", "--role", "operate", "--domain", "shop"]);
    let (pia, pia_line) = new_token(&["pia", "--role", "publish", "--domain", "shop"]);
    let guarded = Guarded::with(&[&ann_line, &pia_line], &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = |domain: &str| {
        let path = folder.path().join(domain);
        let policy = json!({"name": "p", "partition_by": [], "quota": 5, "window": "1m"});
        fs::write(&path, json!({"domain": domain, "policies": [policy]}).to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (shop, pay) = (file("shop"), file("pay"));
    let refused = "ann has the role operate, and this takes the role publish";
    guarded.refused(&ann, &["document", "publish", &shop, "--yes"], refused);
    guarded.refused(
        &pia,
        &["document", "publish", &pay, "--yes"],
        "no role for this in the domain",
    );
    let done = guarded.done(&pia, &["document", "publish", &shop, "--yes", "--by", "root"]);
    assert!(done.starts_with("published document number 1 ("), "{done}");
    assert!(guarded.done(&ann, &["document", "list"]).contains("pia"), "the name of the token");
    guarded.refused(&pia, &["domains", "forget", "shop"], "takes the role admin");
    guarded.refused(&ann, &["document", "withdraw", "--yes"], "takes the role publish");
    let audited = guarded.audited();
    let line = audited.iter().find(|line| line["outcome"] == "done").unwrap();
    assert_eq!((&line["actor"], &line["action"]), (&json!("pia"), &json!("POST /v1/documents")));
    assert_eq!(line["after"]["number"], 1);
}

#[test]
fn roles_and_domains_decide_what_a_token_may_do() {
    let (ann, ann_line) = new_token(&["ann", "--role", "operate", "--domain", "shop"]);
    let (eve, eve_line) = new_token(&["eve", "--role", "view"]);
    let (zoe, zoe_line) = new_token(&["zoe", "--role", "admin", "--domain", "pay,shop"]);
    let guarded = Guarded::with(&["# who may do what", &ann_line, &eve_line, &zoe_line], &[]);

    // Ann has one domain, so she need not name it, and sees no other one.
    let set = ["dial", "set", "per-caller", "--quota", "7", "--reason", "INC-7", "--by", "root"];
    assert_eq!(guarded.done(&ann, &set), "set dial per-caller: quota 7\n");
    let block = ["override", "set", "per-caller", "jwt.sub=mallory", "--blocked"];
    guarded.done(&ann, &block);
    for list in [&["dial", "list"][..], &["domains"], &["history"], &["override", "list"]] {
        let out = guarded.done(&ann, list);
        assert!(out.contains("shop") && !out.contains("pay"), "{list:?}: {out}");
    }
    let pay = ["dial", "set", "payments", "--mode", "off", "--domain", "pay"];
    guarded.refused(&ann, &pay, "ann has no role for this in the domain \"pay\": name one of shop");
    guarded.refused(&ann, &["dial", "list", "--domain", "pay"], "no role for this in the domain");
    guarded.refused(&ann, &["domains", "forget", "shop"], "takes the role admin");

    // Eve sees both and changes nothing.
    let boards = guarded.done(&eve, &["dial", "list"]);
    assert!(boards.contains("payments") && boards.contains("per-caller"), "{boards}");
    guarded.refused(&eve, &set, "eve has the role view, and this takes the role operate");
    guarded.refused(&zoe, &["domains", "forget", "shop"], "would report it again");
    guarded.refused("wrong", &["dial", "list"], "rejects the token from QUOTAGATE_TOKEN");

    // History has the name of the token, and the other name as a remark.
    let history = guarded.done(&eve, &["history", "--policy", "per-caller"]);
    let line = history.lines().find(|line| line.contains("set dial")).unwrap();
    assert!(line.contains("  ann  operate  "), "{history}");
    assert!(line.ends_with("set dial per-caller: quota 7; INC-7; by root"), "{history}");
    for (flags, count) in [
        (&["--person", "ann"][..], 2),
        (&["--person", "root"], 0),
        (&["--party", "jwt.sub=mallory"], 1),
        (&["--party", "jwt.sub=mallory,*"], 1),
        (&["--party", "jwt.sub=alice"], 0),
        (&["--since", "1h"], 2),
        (&["--policy", "payments"], 0),
    ] {
        let json = guarded.done(&eve, &[&["history", "--json"], flags].concat());
        let found: Vec<Value> = serde_json::from_str(&json).unwrap();
        assert_eq!(found.len(), count, "{flags:?}: {json}");
    }

    let audited = guarded.audited();
    let tries = audited.iter().map(|line| {
        let text = |name: &str| line[name].as_str().unwrap_or("-");
        format!("{} {} {}", text("outcome"), text("actor"), text("action"))
    });
    assert_eq!(
        tries.collect::<Vec<_>>(),
        [
            "done ann PUT /v1/dials",
            "done ann PUT /v1/overrides",
            // The command looks at the dials before it sets one.
            "refused ann GET /v1/boards",
            "refused ann PUT /v1/dials",
            "refused ann GET /v1/boards",
            "refused ann DELETE /v1/domains",
            "refused eve PUT /v1/dials",
            "refused zoe DELETE /v1/domains",
            "refused - GET /v1/boards",
        ],
        "{audited:?}"
    );
    assert_eq!((&audited[0]["reason"], &audited[0]["remark"]), (&json!("INC-7"), &json!("root")));
    assert_eq!(audited[1]["partition"], json!("jwt.sub=mallory"));
    let texts = [fs::read_to_string(&guarded.audit).unwrap(), guarded.fleet.store.log()].concat();
    for secret in [&ann, &eve, &zoe] {
        assert!(!texts.contains(secret.as_str()));
    }
}

#[test]
fn tokens_change_without_a_restart_and_a_wrong_file_changes_nothing() {
    let (ann, ann_line) = new_token(&["ann", "--role", "view"]);
    let (new_ann, new_line) = new_token(&["ann", "--role", "view"]);
    assert_ne!(ann, new_ann);
    let old = "an-old-token-without-a-name";
    let guarded = Guarded::with(&[old, &ann_line], &[]);
    // The token of old may do everything, and history has the name that its holder gives.
    guarded
        .done(old, &["dial", "set", "payments", "--domain", "pay", "--quota", "7", "--by", "bob"]);
    let history = guarded.done(old, &["history"]);
    assert!(history.contains("  bob  -  "), "{history}");

    // The stream of a token that goes ends.
    let mut stream = std::net::TcpStream::connect(guarded.fleet.admin()).unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ann}\r\nconnection: close\r\n\r\n"
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    fs::write(&guarded.file, [old, &ann_line, &new_line].join("\n")).unwrap();
    guarded.until_valid(&new_ann, true);
    guarded.done(&ann, &["dial", "list"]);
    fs::write(&guarded.file, [old, "two words", "x y * z", &ann_line].join("\n")).unwrap();
    let logged = || {
        let log = guarded.fleet.store.log();
        Ok(log.contains("line 2: it has 2 words")
            && log.contains("line 3: the role must be one of"))
    };
    wait::until_true("the faults are logged", PATIENCE, logged).unwrap();
    guarded.done(&new_ann, &["dial", "list"]);
    fs::write(&guarded.file, [old, &new_line].join("\n")).unwrap();
    guarded.until_valid(&ann, false);
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("payments"), "{text}");
    guarded.done(&new_ann, &["dial", "list"]);
}

#[test]
fn proxy_in_front_names_people_and_their_groups() {
    let flags = ["--auth-header", "x-forwarded-email", "--auth-from", "127.0.0.1"];
    let guarded = Guarded::with(&["group:ops operate shop", "group:all view *"], &flags);
    let ask = |method: &str, groups: &str| {
        let body = br#"{"policy":"per-caller","quota":7,"by":"x"}"#;
        let request =
            Request::new(method, if method == "PUT" { "/v1/dials" } else { "/v1/boards" })
                .header("content-type", "application/json")
                .header("content-length", body.len().to_string())
                .header("x-forwarded-email", "ann@example.com")
                .header("x-forwarded-groups", groups)
                .body(body);
        Client::connect(guarded.fleet.store.admin_port()).unwrap().send(&request).unwrap()
    };
    assert_eq!(ask("PUT", "all,ops").status, 200);
    assert_eq!(ask("PUT", "all").status, 403);
    let none = ask("GET", "other");
    assert!(none.status == 403 && none.text().contains("is in no group"), "{}", none.text());
    let boards = ask("GET", "all").text();
    assert!(boards.contains("payments"), "{boards}");
    let first = &guarded.audited()[0];
    assert_eq!(
        (&first["actor"], &first["header"], &first["role"]),
        (&json!("ann@example.com"), &json!("x-forwarded-email"), &json!("operate"))
    );
}

#[test]
fn new_token_is_random_and_its_line_holds_no_secret() {
    let done = run(&mut command(&["token", "new", "ann", "--role", "operate"]), b"");
    let lines: Vec<&str> = done.out.lines().collect();
    let [_, secret, _, _, line] = lines.as_slice() else { panic!("{done:?}") };
    assert!(secret.starts_with("qg_") && secret.len() == 3 + 43, "{secret}");
    let digest = std::process::Command::new("sh")
        .args(["-c", &format!("printf %s '{secret}' | sha256sum")])
        .output()
        .unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    let expected = format!("ann operate * {}", digest.split(' ').next().unwrap());
    assert_eq!(*line, expected);
    for (role, file) in [("call", " --token-file,"), ("view", " --admin-token-file,")] {
        let done = run(&mut command(&["token", "new", "edge", "--role", role]), b"");
        assert!(done.out.contains(file), "{done:?}");
    }
    for (arguments, says) in [
        (&["an:n", "--role", "view"][..], "must be 1 to 63 of the characters"),
        (&["qg_ann", "--role", "view"], "must not begin with qg_"),
        (&["ann"], "--role"),
        (&["ann", "--role", "root"], "view, operate, publish, admin"),
        (&["ann", "--role", "view", "--domain", "a b"], "--domain"),
    ] {
        let done = run(&mut command(&[&["token", "new"], arguments].concat()), b"");
        assert!(done.status == 2 && done.err.contains(says), "{arguments:?}: {done:?}");
    }
}

#[test]
fn ends_are_recorded_once_by_two_stores_on_one_redis() {
    let fleet = Fleet::redis();
    let url = fleet.redis.as_ref().unwrap().url();
    let program = env!("CARGO_BIN_EXE_quotagate");
    let _second = StoreProcess::start_with(&StoreOptions::new(&url).program(program)).unwrap();
    let party = ["override", "set", "per-key", "jwt.sub=a", "--blocked", "--for", "1s"];
    fleet.done(&party);
    fleet.done(&["dial", "set", "per-key", "--quota", "7", "--for", "1s"]);
    fleet.done(&["dial", "set", "log-ins", "--quota", "7", "--for", "6s"]);
    let ended = || -> Vec<String> {
        let history = fleet.json(&["history", "--person", "-"]);
        let events = history.as_array().unwrap().iter();
        events.map(|event| event["done"].as_str().unwrap().to_owned()).collect()
    };
    let last = || Ok(ended().first().is_some_and(|done| done == "dial log-ins ended: quota 7"));
    wait::until_true("the last one has ended", PATIENCE, last).unwrap();
    let mut all = ended();
    all.sort();
    let expected = [
        "dial log-ins ended: quota 7",
        "dial per-key ended: quota 7",
        "override per-key jwt.sub=a ended: blocked",
    ];
    assert_eq!(all, expected);
}
