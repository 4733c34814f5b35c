//! Errors and their exit statuses 1, 2 and 3.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Output, Stdio};

use quotagate_support::store::StoreOptions;

use super::fleet::{self, Done, Fleet, command, run};

/// Runs `quotagate ARGUMENTS` without a store.
fn alone(arguments: &[&str]) -> Done {
    run(&mut command(arguments), b"")
}

#[test]
fn a_wrong_command_fails_before_any_call() {
    for (arguments, says) in [
        (&["dial", "set", "p"][..], "--mode"),
        (&["dial", "set", "p", "--for", "1h"], "--mode"),
        (&["dial", "set", "*", "--quota", "1"], "--quota is for one policy"),
        (&["dial", "set", "p", "--mode", "of"], "possible values: enforce, mark, shadow, off"),
        (&["dial", "set", "p", "--quota", "-1"], "-1"),
        (&["dial", "set", "p", "--quota", "9007199254740992"], "9007199254740991"),
        (&["dial", "set", "p", "--mode", "off", "--for", "soon"], "30s, 15m or 1h"),
        (&["history", "--limit", "0"], "--limit"),
        (&["dial", "lst"], "Did you mean list?"),
        (&["overide", "list"], "Did you mean override?"),
        (&["top", "--polcy", "p"], "Did you mean --policy?"),
        (&["dial", "set", "p", "--mode", "shadw"], "Did you mean shadow?"),
        (&["dial", "set", "p", "--quota", "1,5"], "such as 5000 or 5,000"),
        (&["override", "set", "p", "*"], "--unlimited"),
        (&["override", "set", "p", "*", "--blocked", "--quota", "1"], "cannot be used with"),
        (&["override", "set", "p", "--blocked"], "PARTITION"),
        (&["usage", "alice"], "jwt.sub=alice"),
        (&["usage", "sub=alice"], "is not a label"),
        (&["usage", "header.x-api-key=abc"], "--secret header.x-api-key"),
        (&["usage", "--secret", "apikey"], "is not a label"),
        (&["usage", "--secret", "header.x-api-key"], "standard input"),
        (&["reset", "p", "*"], "--yes"),
        (&["top", "--watch"], "--json"),
        (&["top", "--limit", "0"], "--limit"),
        (&["top", "--watch", "--interval", "10ms"], "from 1s to 1h"),
        (&["top", "--filter", "a", "--json"], "leave out one of them"),
        (&["top", "--admin", "https://store:9181"], "ssh -L"),
        (&["top", "--admin", "store"], "must be host:port"),
        (&["top", "--token-file", "/no/such/file"], "cannot be read"),
        (&["dial", "clear", "p", "--by", " "], "--by"),
        (&["completions", "ksh"], "bash"),
    ] {
        let done = alone(arguments);
        assert_eq!(done.status, 2, "{arguments:?}: {done:?}");
        assert!(
            done.err.starts_with("quotagate: ") && done.err.contains(says),
            "{arguments:?}: {}",
            done.err
        );
        assert_eq!(done.out, "");
    }
}

#[test]
fn a_token_is_required_and_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (good, wrong) =
        (file("good", "s3cret-of-the-operators\n"), file("wrong", "0ther-token-of-operators\n"));
    let options = StoreOptions::new("memory:").arguments(&["--token-file", &good]);
    let fleet = Fleet::silent(&options, None);
    let with = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = command(&[&["dial", "list"], arguments].concat());
        run(command.env("QUOTAGATE_ADMIN", fleet.admin()).envs(variables.iter().copied()), b"")
    };
    let none = with(&[], &[]);
    assert!(
        none.status == 1 && none.err.contains("requires a token: put it into QUOTAGATE_TOKEN"),
        "{none:?}"
    );
    for (variables, arguments) in [
        (&[("QUOTAGATE_TOKEN", "0ther-token-of-operators")][..], &[][..]),
        (&[("QUOTAGATE_TOKEN_FILE", wrong.as_str())], &[]),
        (&[("QUOTAGATE_TOKEN", "s3cret-of-the-operators")], &["--token-file", &wrong]),
    ] {
        let done = with(variables, arguments);
        assert!(done.status == 1 && done.err.contains("rejects the token from"), "{done:?}");
        assert!(!done.err.contains("0ther") && !done.err.contains("s3cret"), "{done:?}");
    }
    for (variables, arguments) in [
        (&[("QUOTAGATE_TOKEN", "s3cret-of-the-operators")][..], &[][..]),
        (&[("QUOTAGATE_TOKEN_FILE", good.as_str())], &[]),
        (
            &[
                ("QUOTAGATE_TOKEN", "s3cret-of-the-operators"),
                ("QUOTAGATE_TOKEN_FILE", wrong.as_str()),
            ],
            &[],
        ),
        (
            &[
                ("QUOTAGATE_ADMIN_TOKEN_FILE", good.as_str()),
                ("QUOTAGATE_TOKEN_FILE", wrong.as_str()),
            ],
            &[],
        ),
        (&[("QUOTAGATE_TOKEN", "0ther-token-of-operators")], &["--token-file", &good]),
    ] {
        let done = with(variables, arguments);
        assert_eq!(done.status, 0, "{done:?}");
    }
    assert_eq!(with(&[("QUOTAGATE_TOKEN", "two words")], &[]).status, 2);
    assert!(!fleet.store.log().contains("s3cret") && !fleet.store.log().contains("0ther"));
}

#[test]
fn an_unreachable_store_is_reported_with_its_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (admin, named) in [
        (free.as_str(), free.as_str()),
        ("unix:/no/such.sock", "unix:/no/such.sock"),
        ("http://name.invalid:9181", "name.invalid:9181"),
    ] {
        let done = alone(&["dial", "list", "--admin", admin]);
        assert_eq!(done.status, 3, "{done:?}");
        assert!(done.err.contains(named) && done.err.contains("--admin"), "{done:?}");
    }
}

/// Answers one connection with these bytes, for any request.
fn answering(bytes: &'static [u8]) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        let _ = stream.read(&mut asked);
        let _ = stream.write_all(bytes);
    });
    (address, thread)
}

#[test]
fn the_store_is_reachable_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        let read = stream.read(&mut asked).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
        String::from_utf8(asked[..read].to_vec()).unwrap()
    });
    let admin = format!("unix:{}", path.display());
    let done = alone(&[
        "override", "list", "--policy", "a b&c", "--domain", "shop", "--json", "--admin", &admin,
    ]);
    assert_eq!((done.status, done.out.as_str()), (0, "[]\n"), "{done:?}");
    let asked = thread.join().unwrap();
    assert!(
        asked.starts_with("GET /v1/overrides?policy=a%20b%26c&domain=shop HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(!asked.contains("authorization"), "{asked}");
}

#[test]
fn a_closed_output_of_a_list_is_no_error() {
    let fleet = Fleet::memory();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut list = command(&["dial", "list", "--admin", &fleet.admin()]);
    let child = list.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    // The child keeps the only writer.
    drop(list);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!((status.code(), String::from_utf8(stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn a_closed_output_of_local_commands_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    std::fs::write(&log, r#"{"time":"2026-11-21T22:55:41.000Z","partition":"a"}"#).unwrap();
    let advise = ["advise", log.to_str().unwrap(), "--key-field", "partition", "--window", "1h30m"];
    assert_eq!(alone(&advise).status, 0, "{:?}", alone(&advise));
    for arguments in [&advise[..], &["schema"], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut unread = command(arguments);
        let child = unread.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(unread);
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        assert_eq!(
            (status.code(), String::from_utf8(stderr).unwrap().as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_full_standard_error_changes_no_status() {
    let fleet = Fleet::memory();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    for (arguments, expected) in [
        (&["dial", "set", "per-key", "--quota", "7"][..], 0),
        (&["dial", "clear", "per-key"], 0),
        (&["override", "set", "per-key", "*", "--blocked"], 0),
        (&["reset", "per-caller", "jwt.sub=alice", "--yes"], 0),
        (&["usage", "jwt.sub=nobody"], 1),
        (&["dial", "set", "per-key"], 2),
        (&["check", "/no/such/file"], 2),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(arguments);
        command.env("QUOTAGATE_ADMIN", fleet.admin()).stdout(Stdio::null()).stderr(full);
        assert_eq!(command.status().unwrap().code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn answers_of_other_servers_are_reported() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>"[..],
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot here\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[]",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ] {
        let (address, thread) = answering(bytes);
        let done = alone(&["dial", "list", "--admin", &address]);
        thread.join().unwrap();
        assert_eq!(done.status, 3, "{done:?}");
        assert!(done.err.contains(&address) && done.err.contains("--admin"), "{done:?}");
    }
}

#[test]
fn the_call_address_of_a_store_is_recognized() {
    let fleet = Fleet::memory();
    let calls = format!("127.0.0.1:{}", fleet.store.port());
    for arguments in [
        &["dial", "list"][..],
        &["dial", "set", "per-key", "--mode", "off"],
        &["dial", "clear", "per-key"],
        &["usage", "jwt.sub=alice"],
        &["top"],
    ] {
        let done = alone(&[arguments, &["--admin", &calls]].concat());
        assert_eq!(done.status, 3, "{done:?}");
        assert!(
            done.err.contains(&calls)
                && done.err.contains("a store's call address")
                && done.err.contains("--admin"),
            "{done:?}"
        );
    }
}

#[test]
fn errors_of_other_servers_are_not_taken_for_a_store_s() {
    for bytes in [
        &b"HTTP/1.1 404 Not Found\r\ncontent-length: 21\r\n\r\n{\"error\":\"not found\"}"[..],
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 24\r\n\r\n{\"error\":\"unauthorized\"}",
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (address, thread) = answering(bytes);
        let done = alone(&["dial", "list", "--admin", &address]);
        thread.join().unwrap();
        assert_eq!(done.status, 3, "{done:?}");
        assert!(done.err.contains("is not the admin address of a quotagate store"), "{done:?}");
    }
}

#[test]
fn a_change_has_the_name_of_the_operator() {
    let fleet = Fleet::memory();
    let id = std::process::Command::new("id").arg("-un").output().unwrap();
    let me = String::from_utf8(id.stdout).unwrap();
    for (variables, name) in
        [(&[("USER", "root"), ("SUDO_USER", "bob")][..], "bob"), (&[("USER", "")], me.trim())]
    {
        let mut command = command(&["dial", "set", "per-key", "--mode", "off"]);
        let done =
            run(command.env("QUOTAGATE_ADMIN", fleet.admin()).envs(variables.iter().copied()), b"");
        assert_eq!(done.status, 0, "{done:?}");
        let by = fleet.json(&["history"])[0]["by"].as_str().unwrap().to_owned();
        assert!(by.starts_with(&format!("{name}@")), "{by}");
    }
}

#[test]
fn a_silent_store_times_out_after_five_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let done = alone(&["top", "--admin", &listener.local_addr().unwrap().to_string()]);
    assert!(done.status == 3 && done.err.contains("no answer within 5 s"), "{done:?}");
}

#[test]
fn a_store_without_redis_is_reported() {
    let mut fleet = Fleet::redis();
    fleet.redis.as_mut().unwrap().kill().unwrap();
    let done = fleet.run(&["dial", "set", "per-key", "--mode", "off"]);
    assert_eq!(done.status, 3, "{done:?}");
    assert!(
        done.err.contains(&fleet.admin()) && done.err.contains("cannot do this now"),
        "{done:?}"
    );
}

#[test]
fn completions_contain_commands_flags_and_values() {
    for shell in ["bash", "zsh", "fish"] {
        let done = alone(&["completions", shell]);
        assert_eq!(done.status, 0);
        for word in [
            "override",
            "completions",
            "on-failure",
            "shadow",
            "digest-key-file",
            "history",
            "forget",
        ] {
            assert!(done.out.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_runs_the_completions() {
    let text = alone(&["completions", "bash"]).out;
    let script = format!(
        "{text}\nCOMP_WORDS=(quotagate dial set p --mode ''); COMP_CWORD=5\n_quotagate quotagate '' --mode\necho \"${{COMPREPLY[*]}}\""
    );
    let Output { status, stdout, stderr } =
        std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(String::from_utf8_lossy(&stdout).trim(), "enforce mark shadow off");
}

#[test]
fn top_ends_with_status_1_while_a_part_is_missing() {
    let fleet = Fleet::redis();
    fleet.reserve("per-caller", "jwt.sub=alice", 10, 10);
    // The list of stores and proxies is no hash any more, so the store reads none of it.
    fleet.redis.as_ref().unwrap().cli(&["SET", "qg:publishers:{*}", "x"]).unwrap();
    let misses = || Ok(fleet.run(&["top"]).status == 1);
    quotagate_support::wait::until_true("the list to be read again", fleet::PATIENCE, misses)
        .unwrap();
    for (flags, shown) in
        [(&["top"][..], "jwt.sub=alice"), (&["top", "--json"], r#""incomplete":"#)]
    {
        let part = fleet.run(flags);
        assert!(part.status == 1 && part.out.contains(shown), "{part:?}");
        let why = "the answer may not be complete: at most 256 stores and proxies publish";
        assert!(part.err.contains(why), "{part:?}");
    }
}
