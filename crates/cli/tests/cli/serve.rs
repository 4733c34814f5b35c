//! `quotagate serve` as a process: its first log line, its end and its errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

fn quotagate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command
        .arg("serve")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn refused(arguments: &[&str]) -> Output {
    let output = quotagate(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    output
}

/// Starts the store, and reads the addresses in its first log line.
fn ready(arguments: &[&str]) -> (Child, String, String) {
    let mut child = quotagate(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("listening on ")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let after =
        |mark: &str| line.split_once(mark).unwrap().1.split([',', ' ']).next().unwrap().to_owned();
    (child, after("listening on http://"), after("admin on http://"))
}

#[test]
fn the_log_has_the_addresses_and_sigterm_ends_the_store() {
    for threads in ["1", "2"] {
        let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--threads", threads];
        let (mut child, listen, admin) = ready(&[&addresses[..], &["--drain", "0s"]].concat());
        assert!(!listen.ends_with(":0"), "{listen}");
        let mut stream = TcpStream::connect(&admin).unwrap();
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(name).arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
}

/// `GET /readyz` on a connection: the status, and whether the answer asks to close it.
fn ask(stream: &mut TcpStream) -> Option<(String, bool)> {
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").ok()?;
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
    let head = String::from_utf8_lossy(&bytes[..count]).to_lowercase();
    let status = head.split_whitespace().nth(1)?.to_owned();
    Some((status, head.contains("connection: close")))
}

#[test]
fn sigterm_keeps_idle_connections_and_a_second_one_ends_the_drain() {
    let (mut child, listen, admin) =
        ready(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", "memory:"]);
    let mut kept = TcpStream::connect(&admin).unwrap();
    assert_eq!(ask(&mut kept), Some(("200".to_owned(), false)));
    signal(&child, "-TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(
        ask(&mut kept),
        Some(("503".to_owned(), true)),
        "a connection that was idle at SIGTERM"
    );
    let mut new = TcpStream::connect(&admin).unwrap();
    assert_eq!(
        ask(&mut new),
        Some(("503".to_owned(), true)),
        "a connection that was made after SIGTERM"
    );
    assert!(TcpStream::connect(&listen).is_ok());
    assert_eq!(child.try_wait().unwrap(), None, "it drains for 5 s");
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn sigint_ends_the_store_without_draining() {
    let (mut child, ..) =
        ready(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain", "1h"]);
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn errors_are_one_sentence_without_the_password() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let [none, two, good] = [
        file("none", "\n"),
        file("two", "s3cret\nmore\n"),
        file("good", "s3cret-of-the-operators\n"),
    ];
    let faulty = file("faulty", "ann root * s3cret\n\nann view s3cret\nbob\n");
    let proxy = ["--auth-from", "::1", "--admin-token-file", &good];
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (arguments, says) in [
        (
            vec!["--store", "redis://u:s3cret@a,b"],
            "--store: the store URL of redis:// takes one host",
        ),
        (vec!["--store", "http://u:s3cret@a"], "--store: the store URL must begin with"),
        (vec!["--prefix", "a{b"], "--prefix"),
        (vec!["--listen", "nonsense"], "--listen"),
        (vec!["--threads", "0"], "invalid value '0' for '--threads <N>': 0 is not in 1..=64"),
        (vec!["--drain", "2h"], "must be a duration from 0s to 1h, such as 30s, 15m or 1h"),
        (vec!["--drain", "0"], "must be a duration from 0s to 1h"),
        (vec!["--drain", "5"], "must be a duration from 0s to 1h, such as 30s, 15m or 1h"),
        (vec!["--token-file", "/no/such/file"], "--token-file: /no/such/file cannot be read"),
        (
            vec!["--password-file", "/no/such/file"],
            "--password-file: /no/such/file cannot be read: No such file",
        ),
        (
            vec!["--token-file", &none],
            "must hold tokens of visible ASCII characters, one on each line, in at most 64 KiB",
        ),
        (
            vec!["--store", "redis-sentinel://s/m?sentinel_password=s3cret"],
            "--store: the store URL takes no sentinel_password: the parameters of redis-sentinel:// are client_cert",
        ),
        (
            vec!["--store", "redis-sentinel://s/m?sentinel_password_file=/no/such/file"],
            "--store: the store URL names a sentinel_password_file that cannot be used: /no/such/file cannot be read",
        ),
        (vec!["--store", "redis://::1:6379"], "write it as [::1]:6379"),
        (vec!["--password-file", &none], "must hold one line of at most 64 KiB, the password"),
        (vec!["--password-file", &two], "must hold one line of at most 64 KiB, the password"),
        (
            vec!["--password-file", &good],
            "--password-file: the store URL memory: takes no password",
        ),
        (
            vec!["--store", "redis://u:s3cret@h", "--password-file", &good],
            "--password-file: the store URL holds a password already: give it in one place",
        ),
        (vec!["--listen", &address], "--listen: cannot listen on"),
        (
            vec!["--admin-token-file", &faulty],
            "has faults: line 1: the role must be one of call, view, operate, publish, admin; line 3: it has 3 words: write one \
             token of visible ASCII characters, or NAME ROLE DOMAINS SHA256, or group:NAME ROLE DOMAINS; line 4: it would be \
             a token without a name",
        ),
        (
            vec!["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--audit", "/no/such/file"],
            "--audit: /no/such/file cannot be written: No such file",
        ),
        (vec!["--auth-header", "x-user", "--auth-from", "::1"], "--admin-token-file"),
        (vec!["--auth-header", "x-user", "--admin-token-file", &good], "--auth-from"),
        (vec!["--auth-from", "localhost"], "must be an IP address or a network"),
        (vec!["--auth-from", "0.0.0.0/0"], "would trust the headers of everyone"),
        (vec!["--auth-from", "::1"], "--auth-header"),
        (vec!["--auth-header", "Authorization"], "authorization is a header of the client"),
        (vec!["--auth-groups-header", "cookie"], "cookie is a header of the client"),
        (
            [&proxy[..], &["--auth-header", "x-forwarded-groups"]].concat(),
            "--auth-groups-header: x-forwarded-groups names the person already",
        ),
    ] {
        let output = refused(&arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(says) && !text.contains("s3cret"), "{arguments:?}: {text}");
    }
}

#[test]
fn the_environment_sets_flags() {
    let output = quotagate(&[]).env("QUOTAGATE_STORE", "redis://:s3cret@").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!String::from_utf8(output.stderr).unwrap().contains("s3cret"));
    let help = quotagate(&["--help"]).env("QUOTAGATE_STORE", "redis://:s3cret@h").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("s3cret"));
}

/// The log up to the first line with addresses, with these arguments and `QUOTAGATE_STORE`.
fn first_words(arguments: &[&str], variable: &str) -> String {
    let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut command = quotagate(&[&addresses, arguments].concat());
    let mut child = command.env("QUOTAGATE_STORE", variable).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = String::new();
    for line in lines {
        said += &line;
        if line.contains("listening on ") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

#[test]
fn a_password_on_the_command_line_is_warned_of() {
    let url = "redis://u:s3cret@127.0.0.1:1";
    let on_the_command_line = [
        first_words(&["--store", url], "memory:"),
        first_words(&[&format!("--store={url}")], "memory:"),
    ];
    for said in on_the_command_line {
        assert!(
            said.contains("can read the password on the command line") && !said.contains("s3cret"),
            "{said}"
        );
    }
    for said in
        [first_words(&[], url), first_words(&["--store", "redis://u@127.0.0.1:1"], "memory:")]
    {
        assert!(!said.contains("command line"), "{said}");
    }
}
