//! `quotagate document`.

use std::fs;
use std::time::Duration;

use quotagate_protocol::dials::{PolicyReport, RefusedDocument, Report};
use serde_json::{Value, json};

use quotagate_support::http;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;

use super::fleet::{Done, Fleet, PATIENCE, command, policy, row, run};

/// A folder with documents.
struct Folder {
    fleet: Fleet,
    folder: tempfile::TempDir,
}

fn document(quota: u64, window: &str) -> Value {
    json!({
        "domain": "shop",
        "store": {"redis": "redis://:s3cret@redis"},
        "digest_key": "t0ps3cret-key-of-digests",
        "live": true,
        "policies": [{"name": "per-caller", "partition_by": [], "quota": quota, "window": window}]
    })
}

impl Folder {
    fn with(fleet: Fleet) -> Self {
        Self { fleet, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, document: &Value) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, document.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn publish(&self, document: &Value) -> Done {
        let file = self.file("document.yaml", document);
        self.fleet.done(&["document", "publish", &file, "--yes"])
    }

    /// The first worker of a live proxy reports this document, which it has had for a minute.
    fn reports(&self, proxy: &str, digest: &str, number: u64, refused: Option<RefusedDocument>) {
        let report = report(proxy, digest, number);
        self.fleet.send("shop", &Report { wrong_document: refused, ..report });
    }
}

fn report(proxy: &str, digest: &str, number: u64) -> Report {
    Report {
        proxy: proxy.to_owned(),
        digest: digest.to_owned(),
        number,
        in_force_s: 60,
        live: true,
        policies: vec![policy("per-caller")],
        ..Report::default()
    }
}

#[test]
fn document_is_published_compared_and_rolled_back() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        let folder = Folder::with(fleet);
        let is_memory = folder.fleet.redis.is_none();
        let none = folder.fleet.done(&["document", "list"]);
        assert!(none.err.contains("No document was published in shop"), "{none:?}");
        let first = folder.publish(&document(5, "1m"));
        assert!(first.out.starts_with("published document number 1 ("), "{first:?}");
        assert!(first.err.contains("quotagate document status"), "{first:?}");
        assert_eq!(first.err.contains("keeps it in memory"), is_memory, "{first:?}");
        assert!(first.err.contains("No document is published in shop"), "{first:?}");
        let second = folder.publish(&document(7, "1h"));
        assert!(
            second.err.contains("per-caller: starts from zero (differs: window)"),
            "{second:?}"
        );
        let diff = folder.fleet.done(&["document", "diff", "1", "2"]).out;
        assert!(diff.contains("quota: 5 -> 7") && diff.contains("window: 1m -> 1h"), "{diff}");
        let back = folder.fleet.done(&["document", "rollback", "--yes", "--note", "too many 429"]);
        assert!(back.out.contains("number 3 (") && back.out.contains("of number 1"), "{back:?}");
        let shown = folder.fleet.done(&["document", "show"]);
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(shown["policies"][0]["quota"], 5);
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        let by = folder.fleet.json(&["document", "list"])["documents"][0]["by"].clone();
        let by = by.as_str().unwrap().to_owned();
        let list = folder.fleet.done(&["document", "list"]).out;
        assert_eq!(row(&list, "3")[3..], ["1", &by, "rollback to 1; too many 429"], "{list}");
        let done = folder.fleet.done(&["document", "withdraw", "--yes"]);
        assert_eq!(done.out, "withdrew the published document, as number 4\n");
        assert!(folder.fleet.run(&["document", "withdraw", "--yes"]).status == 1);
        let history = folder.fleet.done(&["history"]).out;
        assert!(history.contains("published document number 2"), "{history}");
        // What `show` prints can be published again.
        let file = folder.file("shown.json", &shown);
        folder.fleet.done(&["document", "publish", &file, "--yes"]);
        if let Some(redis) = &folder.fleet.redis {
            let everything = redis.cli(&["HGETALL", "qg:texts:{shop}"]).unwrap().lines();
            assert!(everything.contains("per-caller") && !everything.contains("s3cret"));
            let all = redis.cli(&["KEYS", "qg:documents:*"]).unwrap().lines();
            assert_eq!(all, "qg:documents:{shop}");
        }
    }
}

#[test]
fn each_rollback_goes_further_back_and_a_lost_text_stops_no_publication() {
    let folder = Folder::with(Fleet::redis());
    for quota in [5, 6, 7] {
        folder.publish(&document(quota, "1m"));
    }
    let goes_back = |number: u64, content: u64| {
        let back = folder.fleet.done(&["document", "rollback", "--yes"]).out;
        assert!(back.contains(&format!("number {number} (")), "{back}");
        assert!(back.contains(&format!("of number {content}")), "{back}");
    };
    goes_back(4, 2);
    folder.publish(&document(8, "1m"));
    goes_back(6, 4);
    // Not to number 3, which was the first to be gone back from.
    goes_back(7, 1);
    let none = folder.fleet.run(&["document", "rollback", "--yes"]);
    assert!(none.status == 1 && none.err.contains("no earlier document to go back to"), "{none:?}");
    let redis = folder.fleet.redis.as_ref().unwrap();
    redis.cli(&["DEL", "qg:texts:{shop}"]).unwrap();
    redis.cli(&["HDEL", "qg:documents:{shop}", "7"]).unwrap();
    let published = folder.publish(&document(9, "1m"));
    let unknown = "What changes is not known, because number 7 cannot be read: ";
    assert!(published.err.contains(unknown), "{published:?}");
    assert!(published.out.starts_with("published document number 8 ("), "{published:?}");
    // The very document whose text is lost writes it again.
    let file = folder.file("same.yaml", &document(9, "1m"));
    let same = folder.fleet.run(&["document", "publish", &file, "--yes"]);
    assert!(same.status == 1 && same.err.contains("nothing would change"), "{same:?}");
    redis.cli(&["DEL", "qg:texts:{shop}"]).unwrap();
    let same = folder.publish(&document(9, "1m"));
    assert!(same.out.starts_with("published document number 9 ("), "{same:?}");
    // A time that is over, and whose end cannot be written down, keeps nobody from publishing.
    let short = folder.file("short.yaml", &document(10, "1m"));
    folder.fleet.done(&["document", "publish", &short, "--yes", "--for", "1s"]);
    redis.cli(&["HDEL", "qg:texts:{shop}", "9"]).unwrap();
    wait::until_true("the end of the time", PATIENCE, || {
        let listed = folder.fleet.run(&["document", "list"]);
        Ok(listed.err.contains("Publish a document, or withdraw"))
    })
    .unwrap();
    let limited = folder.fleet.run(&["document", "publish", &short, "--yes", "--percent", "5"]);
    assert!(limited.status == 1 && limited.err.contains("for all proxies first"), "{limited:?}");
    let published = folder.publish(&document(11, "1m"));
    assert!(published.out.starts_with("published document number 11 ("), "{published:?}");
}

#[test]
fn documents_of_a_domain_that_no_proxy_reports_are_forgotten() {
    let folder = Folder::with(Fleet::memory());
    let mut misspelt = document(5, "1m");
    misspelt["domain"] = json!("shpo");
    folder.publish(&misspelt);
    let forget = ["domains", "forget", "shpo"];
    let used = folder.fleet.run(&forget);
    assert!(used.status == 1 && used.err.contains("withdraw it first"), "{used:?}");
    folder.fleet.done(&["document", "withdraw", "--yes", "--domain", "shpo"]);
    folder.fleet.done(&forget);
    let absent = folder.fleet.run(&forget);
    assert!(absent.status == 1 && absent.err.contains("no filter has reported"), "{absent:?}");
}

#[test]
fn faults_are_shown_with_path_and_position_and_nothing_is_stored() {
    let folder = Folder::with(Fleet::memory());
    let wrong = folder.file("wrong.yaml", &document(5, "61"));
    let done = folder.fleet.run(&["document", "publish", &wrong, "--yes"]);
    assert!(done.status == 1 && done.err.contains("policies[0].window (policy"), "{done:?}");
    let good = folder.file("good.yaml", &document(5, "1m"));
    let done = folder.fleet.run(&["document", "publish", &good]);
    assert!(done.status == 2 && done.err.contains("--yes"), "{done:?}");
    let done = folder.fleet.run(&["document", "publish", &good, "--yes", "--domain", "pay"]);
    assert!(done.status == 1 && done.err.contains("no document of the domain pay"), "{done:?}");
    let done = folder.fleet.run(&["document", "publish", "/nowhere", "--yes"]);
    assert!(done.status == 1 && done.err.contains("cannot be read"), "{done:?}");
    let listed = folder.fleet.json(&["document", "list"]);
    assert_eq!(listed["documents"], json!([]));
    let unknown = folder.fleet.run(&["document", "show", "3"]);
    assert!(
        unknown.status == 1 && unknown.err.contains("no document was published"),
        "{unknown:?}"
    );
}

#[test]
fn status_says_who_has_the_published_document_and_who_refuses_it() {
    let folder = Folder::with(Fleet::memory());
    folder.publish(&document(5, "1m"));
    folder.publish(&document(6, "1m"));
    let listed = folder.fleet.json(&["document", "list"]);
    let digest = |index: usize| listed["documents"][index]["digest"].as_str().unwrap().to_owned();
    let none = folder.fleet.done(&["document", "status"]);
    assert!(none.err.contains("No proxy has taken a published document up"), "{none:?}");
    folder.reports("0000000000000001", &digest(0), 2, None);
    folder.reports("0000000000000002", &digest(0), 2, None);
    let fault = "policies[0].speed: unknown field".to_owned();
    let refused = RefusedDocument { fault, faults: 1, keeps_last_good: true, number: 2 };
    folder.reports("0000000000000003", &digest(1), 1, Some(refused));
    folder.reports("0000000000000004", "aaaaaaaaaaaa", 0, None);
    let status = folder.fleet.done(&["document", "status"]).out;
    assert!(
        status.starts_with(&format!("shop: number 2 ({}, published at ", digest(0))),
        "{status}"
    );
    assert_eq!(row(&status, "2"), ["2", &*digest(0), "2", "published"]);
    assert!(status.contains("behind") && status.contains("their own: not live"), "{status}");
    assert!(status.contains("published as number 2: ") && status.contains("speed"), "{status}");
    // Of another proxy, one worker has taken it up, and one has not.
    let fifth = |worker, digest: &str, number| Report {
        worker,
        ..report("0000000000000005", digest, number)
    };
    folder.fleet.send("shop", &fifth(0, &digest(0), 2));
    folder.fleet.send("shop", &fifth(1, &digest(1), 1));
    folder
        .fleet
        .send("shop", &Report { live: false, ..report("0000000000000006", "aaaaaaaaaaaa", 0) });
    let status = folder.fleet.done(&["document", "status"]).out;
    assert!(status.contains("\n2 of 5 live proxies have it in all workers, "), "{status}");
    let of = |proxy: &str| row(&status, proxy);
    let published = of("0000000000000001");
    let [name, workers, document, number, since, state] = &published[..] else {
        panic!("{published:?}");
    };
    assert_eq!([name, workers, document, number], ["0000000000000001", "0", &digest(0), "2"]);
    assert_eq!((since.len(), &**state), ("2026-11-26 07:41:12".len(), "published"));
    assert_eq!(of("0000000000000003")[5], "refuses number 2");
    let fourth = of("0000000000000004");
    assert_eq!([&*fourth[3], &*fourth[5]], ["-", "behind"], "it is live");
    assert_eq!(of("0000000000000006")[5], "its own, not live");
    let parts: Vec<&str> =
        status.lines().filter(|line| line.contains("0000000000000005")).collect();
    assert!(parts.len() == 2 && parts[0].ends_with("behind"), "{parts:?}");
    let json = folder.fleet.json(&["document", "status"]);
    assert_eq!(json["taken_up"]["have"], 2);
    assert_eq!(json["proxies"].as_array().unwrap().len(), 7, "{json}");
    assert_eq!(json["proxies"][0]["state"], "behind");
    let since = json["proxies"][0]["workers"][0]["since_ms"].as_u64().unwrap();
    let at_ms = json["documents"][0]["at_ms"].as_u64().unwrap();
    assert!((at_ms - 60_000..at_ms).contains(&since), "{since} {at_ms}");
    assert_eq!(json["in_force"]["proxies"], 6);
    assert_eq!(json["in_force"]["documents"][0]["number"], 2, "{json}");
    let metrics = http::get(folder.fleet.store.admin_port(), "/metrics").unwrap();
    let line =
        format!("quotagate_document{{domain=\"shop\",digest=\"{}\",number=\"2\"}} 3", digest(0));
    assert!(metrics.text().contains(&line), "{}", metrics.text());
    let published = format!(
        "quotagate_document_published{{domain=\"shop\",digest=\"{}\",number=\"2\"}} 1",
        digest(0)
    );
    assert!(metrics.text().contains(&published), "{}", metrics.text());
    wait::until_true("a proxy to be behind", Duration::from_secs(30), || {
        folder.reports("0000000000000003", &digest(1), 1, None);
        let text = http::get(folder.fleet.store.admin_port(), "/metrics")?.text();
        let line = "quotagate_document_behind_seconds{domain=\"shop\"} ";
        let behind = text.lines().find_map(|of| of.strip_prefix(line)).map(str::parse::<u64>);
        Ok(behind.transpose()?.is_some_and(|seconds| seconds > 0))
    })
    .unwrap();
}

#[test]
fn why_and_history_name_the_document_that_decides() {
    for fleet in [Fleet::memory(), Fleet::redis()] {
        let folder = Folder::with(fleet);
        let fleet = &folder.fleet;
        fleet.done(&["dial", "set", "per-caller", "--on-failure", "deny", "--for", "1h"]);
        fleet.reserve("per-caller", "jwt.sub=alice", 3, 4);
        let why = || fleet.done(&["why", "jwt.sub=alice"]).out;
        assert!(!why().contains("decide"), "no proxy says which document it has: {}", why());
        folder.reports("0000000000000001", "aaaaaaaaaaaa", 0, None);
        assert!(why().contains(" The document that decides: embedded. "), "{}", why());
        folder.publish(&document(5, "1m"));
        folder.reports("0000000000000002", "bbbbbbbbbbbb", 1, None);
        let both = " The documents of different proxies that decide: embedded, number 1. ";
        assert!(why().contains(both), "{}", why());
        let usage = fleet.json(&["why", "jwt.sub=alice"]);
        assert_eq!(usage["found"][0]["documents"], json!([0, 1]), "{usage}");
        fleet.done(&["override", "set", "per-caller", "jwt.sub=alice", "--quota", "9"]);
        fleet.done(&["reset", "per-caller", "jwt.sub=alice", "--yes"]);
        let changes = fleet.json(&["history"]);
        let documents: Vec<_> =
            changes.as_array().unwrap().iter().map(|of| &of["document"]).collect();
        // The reset, the override, the publication itself, and the dial of before.
        assert_eq!(documents, [&json!(1), &json!(1), &Value::Null, &json!(0)], "{changes}");
        let table = fleet.done(&["history"]).out;
        let dial = table.lines().find(|line| line.contains("on_failure")).unwrap_or(&table);
        assert!(dial.contains("  embedded  "), "{table}");
        fleet.done(&["document", "withdraw", "--yes"]);
        fleet.done(&["override", "clear", "per-caller", "jwt.sub=alice"]);
        assert_eq!(fleet.json(&["history"])[0]["document"], 0);
    }
}

#[test]
fn share_of_the_proxies_is_compared_with_the_others_and_promoted_or_ended() {
    let folder = Folder::with(Fleet::memory());
    folder.publish(&document(5, "1m"));
    let file = folder.file("next.yaml", &document(6, "1m"));
    let first = ["document", "publish", &file, "--percent", "10", "--yes", "--note", "a try"];
    let done = folder.fleet.done(&first);
    assert!(done.out.contains("policy) for 10 % of the proxies: a try"), "{done:?}");
    let second = folder.fleet.run(&first);
    assert!(second.status == 1 && second.err.contains("document promote"), "{second:?}");
    let listed = folder.fleet.json(&["document", "list"]);
    let digest = |index: usize| listed["documents"][index]["digest"].as_str().unwrap().to_owned();
    let reports = |proxy: &str, digest: &str, number, refused| {
        let policies =
            vec![PolicyReport { admitted: 40 - refused, refused, ..policy("per-caller") }];
        let (proxy, digest) = (proxy.to_owned(), digest.to_owned());
        let report = Report { proxy, digest, number, policies, ..Report::default() };
        folder.fleet.send("shop", &report);
    };
    reports("0000000000000001", &digest(0), 2, 10);
    reports("0000000000000002", &digest(1), 1, 1);
    reports("0000000000000003", &digest(1), 1, 3);
    let status = folder.fleet.done(&["document", "status"]).out;
    assert!(status.contains("by ") && status.contains(") for 10 % of the proxies: a try"));
    assert!(status.contains(&format!("The other proxies: number 1 ({}", digest(1))), "{status}");
    assert_eq!(row(&status, "2")[3..], ["the others"], "{status}");
    assert_eq!(row(&status, "1")[1..], [&*digest(0), "2", "published for 10 %"], "{status}");
    let compared = "Refused in the last five minutes: 25.0 % of 40 requests with number 2, 5.0 % of \
                    80 requests of the other proxies";
    assert!(status.contains(compared), "{status}");
    let list = folder.fleet.done(&["document", "list"]).out;
    assert_eq!(row(&list, "2")[5], "for 10 % of the proxies; a try", "{list}");

    let promoted = folder.fleet.done(&["document", "promote", "--yes"]);
    assert!(promoted.out.contains("number 3 (") && promoted.out.contains("promotes number 2"));
    assert!(promoted.err.contains("quota: 5 -> 6"), "{promoted:?}");
    let list = folder.fleet.done(&["document", "list"]).out;
    assert_eq!(row(&list, "3")[5], "promotes 2", "{list}");
    let nothing = folder.fleet.run(&["document", "promote", "--yes"]);
    assert!(
        nothing.status == 1 && nothing.err.contains("for a share of the proxies"),
        "{nothing:?}"
    );
    let file = folder.file("third.yaml", &document(7, "1m"));
    folder.fleet.done(&["document", "publish", &file, "--percent", "99", "--for", "1h", "--yes"]);
    let list = folder.fleet.done(&["document", "list"]).out;
    assert!(row(&list, "4")[5].starts_with("for 99 % of the proxies until 2"), "{list}");
    let back = folder.fleet.done(&["document", "rollback", "--yes"]).out;
    assert!(back.contains("number 5 (") && back.contains("the content of number 3"), "{back}");
    folder.fleet.done(&["document", "withdraw", "--yes"]);
    folder.fleet.done(&["document", "publish", &file, "--for", "1h", "--yes"]);
    let back = folder.fleet.done(&["document", "rollback", "--yes"]).out;
    assert_eq!(back, "withdrew the published document, as number 8\n", "nothing was before it");
    folder.fleet.done(&["document", "publish", &file, "--percent", "50", "--yes"]);
    reports("0000000000000004", "aaaaaaaaaaaa", 0, 0);
    let status = folder.fleet.done(&["document", "status"]).out;
    assert!(status.contains("The other proxies: their own documents"), "{status}");
    let own = status.lines().find(|line| line.contains("aaaaaaaaaaaa")).unwrap();
    assert!(own.ends_with("the others"), "{status}");
    let promoted = folder.fleet.done(&["document", "promote", "--yes"]);
    assert!(promoted.err.contains("proxies go from their own to this one"), "{promoted:?}");
}

#[test]
fn folder_of_documents_is_published_and_its_faults_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        // As editors and Git do, so that no file is read half written.
        let hidden = folder.path().join(".new");
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, folder.path().join(name)).unwrap();
    };
    let of = |quota: u64| serde_json::to_string_pretty(&document(quota, "1m")).unwrap();
    write("shop.yaml", &of(5));
    write("README.md", "no document");
    let redis = Redis::start().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let options = StoreOptions::new(&redis.url()).arguments(&["--documents", &path]);
    let fleet = Fleet::with(&options, Some(redis));
    let until = |what: &str, is: &dyn Fn() -> bool| {
        wait::until_true(what, PATIENCE, || Ok(is())).unwrap();
    };
    let last = || fleet.json(&["document", "list", "--domain", "shop"])["documents"][0].clone();
    let faulty = |count: &str| {
        let metrics = http::get(fleet.store.admin_port(), "/metrics").unwrap().text();
        metrics.contains(&format!("quotagate_document_files_faulty {count}\n"))
    };
    until("the file", &|| last()["number"] == 1);
    assert_eq!((&last()["note"], &last()["by"]), (&json!("shop.yaml"), &json!("--documents")));
    write("shop.yaml", &of(6));
    until("the change", &|| last()["number"] == 2);
    // Faults leave the last good one in force, and are told with their position.
    write("shop.yaml", &of(7).replace("\"window\": \"1m\"", "\"window\": \"61\""));
    until("the fault", &|| fleet.store.log().contains("policies[0].window"));
    until("the gauge", &|| faulty("1"));
    assert!(fleet.store.log().contains("shop.yaml:"), "{}", fleet.store.log());
    write("shop.yaml", &of(7));
    until("the mended file", &|| last()["number"] == 3 && faulty("0"));
    write("twin.yaml", &of(8));
    until("the second file", &|| fleet.store.log().contains("in shop.yaml and twin.yaml"));
    assert_eq!(last()["number"], 3);
    fs::remove_file(folder.path().join("twin.yaml")).unwrap();
    // Redis loses it, as after a restart without persistence.
    fleet.redis.as_ref().unwrap().cli(&["FLUSHALL"]).unwrap();
    let all = || fleet.json(&["document", "list", "--domain", "shop"])["documents"].clone();
    until("the same again", &|| all().as_array().unwrap().len() == 1);
    let number = last()["number"].as_u64().unwrap();
    // It loses the text alone, which a store writes again that starts then.
    fleet.redis.as_ref().unwrap().cli(&["DEL", "qg:texts:{shop}"]).unwrap();
    let command = options.clone().program(env!("CARGO_BIN_EXE_quotagate"));
    let other = StoreProcess::start_with(&command).unwrap();
    until("the text", &|| last()["number"] == number + 1);
    fs::remove_file(folder.path().join("shop.yaml")).unwrap();
    fleet.done(&["document", "withdraw", "--yes", "--domain", "shop"]);
    assert_eq!(last()["number"], number + 2);
    drop(other);
}

#[test]
fn document_of_standard_input_is_published_before_a_proxy_reports_its_domain() {
    let fleet = Fleet::memory();
    let text = document(5, "1m").to_string().replace("shop", "new");
    let mut publish = command(&["document", "publish", "-", "--yes", "--by", "pipeline"]);
    let done = run(publish.env("QUOTAGATE_ADMIN", fleet.admin()), text.as_bytes());
    assert!(
        done.status == 0 && done.err.contains("no proxy has reported the domain new"),
        "{done:?}"
    );
    let list = fleet.done(&["document", "list", "--domain", "new"]).out;
    assert_eq!(row(&list, "1")[4], "pipeline", "{list}");
}
