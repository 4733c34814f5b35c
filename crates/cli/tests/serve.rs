//! `quotagate serve` as a process: its ready line, its ends, its complaints.

#![cfg(test)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

fn quotagate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn refused(arguments: &[&str]) -> Output {
    let output = quotagate(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    output
}

/// Starts it, and reads the addresses in its ready line.
fn ready(arguments: &[&str]) -> (Child, String, String) {
    let mut child = quotagate(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("listening on ")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let after = |mark: &str| line.split_once(mark).unwrap().1.split([',', ' ']).next().unwrap().to_owned();
    (child, after("listening on http://"), after("admin on http://"))
}

#[test]
fn it_says_where_it_listens_and_ends_on_sigterm() {
    for threads in ["1", "2"] {
        let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--threads", threads];
        let (mut child, listen, admin) = ready(&addresses);
        assert!(!listen.ends_with(":0"), "{listen}");
        let mut stream = TcpStream::connect(&admin).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn what_is_wrong_is_said_in_one_sentence_without_the_password() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (arguments, says) in [
        (vec!["--store", "redis://u:s3cret@a,b"], "--store: the store URL of redis:// takes one host"),
        (vec!["--store", "http://u:s3cret@a"], "--store: the store URL must begin with"),
        (vec!["--prefix", "a{b"], "--prefix"),
        (vec!["--listen", "nonsense"], "--listen"),
        (vec!["--threads", "0"], "invalid value '0' for '--threads <N>': 0 is not in 1..=64"),
        (vec!["--token-file", "/no/such/file"], "--token-file: cannot read the token file /no/such/file"),
        (vec!["--listen", &address], "--listen: cannot listen on"),
    ] {
        let output = refused(&arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(says) && !text.contains("s3cret"), "{arguments:?}: {text}");
    }
}

#[test]
fn the_environment_sets_what_flags_do_not() {
    let output = quotagate(&[]).env("QUOTAGATE_STORE", "redis://:s3cret@").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!String::from_utf8(output.stderr).unwrap().contains("s3cret"));
    let help = quotagate(&["--help"]).env("QUOTAGATE_STORE", "redis://:s3cret@h").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("s3cret"));
}
