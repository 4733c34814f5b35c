//! A server that lets a script read only declared keys, as some Redis-compatible servers do. A
//! proxy in front of a real Redis simulates it: it adds a guard to the counters' script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::common::{back, batch, counter, numbers, one, open, take};
use crate::in_flight::say;
use quotagate_protocol::Reservation;
use quotagate_support::redis::Redis;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const SCRIPT: &str = include_str!("../../src/redis/script/counter.lua");
const GUARD: &str = "
local real = redis
local redis = setmetatable({pcall = function(command, key, ...)
  for _, declared in ipairs(KEYS) do
    if declared == key then return real.pcall(command, key, ...) end
  end
  return {err = 'ERR script tried accessing undeclared key'}
end}, {__index = real})
";

/// The port of such a server in front of Redis on `port`, and the number of counter commands that
/// it received.
async fn strict(port: u16) -> (u16, Arc<AtomicUsize>) {
    let commands = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let counted = Arc::clone(&commands);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(forward(client, server, Arc::clone(&counted)));
        }
    });
    (own, commands)
}

async fn forward(client: TcpStream, server: TcpStream, counted: Arc<AtomicUsize>) -> Option<()> {
    let (asked, mut answers) = client.into_split();
    let (mut answered, mut to) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut answered, &mut answers).await });
    let digest = sha1_smol::Sha1::from(SCRIPT).digest().to_string();
    let mut asked = BufReader::new(asked);
    loop {
        let mut command = Vec::new();
        for _ in 0..number(&mut asked).await? {
            let mut word = vec![0; number(&mut asked).await? + 2];
            asked.read_exact(&mut word).await.ok()?;
            word.truncate(word.len() - 2);
            command.push(word);
        }
        let of_probe = command.iter().any(|word| word.starts_with(b"qg:probe:"));
        if command.iter().any(|word| word.starts_with(b"qg:")) && !of_probe {
            counted.fetch_add(1, SeqCst);
        }
        if command
            .get(1)
            .is_some_and(|script| *script == digest.as_bytes() || *script == SCRIPT.as_bytes())
        {
            command[0] = b"EVAL".to_vec();
            command[1] = [GUARD, SCRIPT].concat().into_bytes();
        }
        let mut sent = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            sent.extend(format!("${}\r\n", word.len()).bytes().chain(word).chain(*b"\r\n"));
        }
        to.write_all(&sent).await.ok()?;
    }
}

/// Reads the number of a line such as `*3` or `$17`.
async fn number(from: &mut (impl AsyncBufReadExt + Unpin)) -> Option<usize> {
    let mut line = String::new();
    from.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_takes_one_command_when_undeclared_keys_cannot_be_read() {
    let redis = Redis::start().unwrap();
    let (port, commands) = strict(redis.port()).await;
    let store = open(&format!("redis://127.0.0.1:{port}")).await;
    let ask = take("strict", 9, 2);
    let grant = one(&*store, &ask).await;
    assert_eq!(grant.used, 2);
    assert_eq!(commands.load(SeqCst), 1, "commands for one reservation");
    let asks = (0..10).map(|n| take(&format!("strict{n}"), 9, 1)).collect();
    let reserved = store.reserve(&batch(vec![back(&ask, grant, 1)], asks)).await;
    assert!(
        reserved.iter().all(|grant| grant.as_ref().is_ok_and(|grant| grant.used == 1)),
        "{reserved:?}"
    );
    assert_eq!(commands.load(SeqCst), 2, "ten reservations and a refund share one more");
    let slots = Reservation { own_quota: true, ..say("slots", 9, "a", 1, 0, 2) };
    assert_eq!(numbers(&*store, &slots).await, (2, 2));
    redis.cli(&["SET", "qg:test:p:{slots}:override", "3"]).unwrap();
    assert_eq!(one(&*store, &say("slots", 9, "b", 1, 0, 2)).await.quota, 3);
    redis.cli(&["SET", "qg:test:p:{strict}:override", "3"]).unwrap();
    assert_eq!(numbers(&*store, &ask).await, (2, 3), "the store must read the override");
    let own = Reservation { own_quota: true, ..take("own", 7, 1) };
    let key = counter(&own, one(&*store, &own).await.window);
    assert_eq!(store.control().get(key).await.unwrap().own_quota, Some(7));
}
