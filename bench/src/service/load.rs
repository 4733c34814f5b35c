//! The load on a rate limit service: gRPC calls, one at a time on each connection.
//!
//! The client writes frames by itself, so that it takes little of the processors that it shares
//! with the service.

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::http::grpc::{
    self, FRAME_HEAD, FrameHead,
    flag::{ACK, END_HEADERS, END_STREAM},
    frame, kind,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use super::parts::{DOMAIN, KEY};
use crate::measure::load::{Load, Seen};

/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a load ends.
#[derive(Clone, Copy)]
pub enum End {
    /// After its seconds.
    Time,
    /// After so many calls of each connection.
    Calls(u32),
}

/// Sends a load to the port of a service. `value` is the value of the first key; the others follow.
pub fn send(load: Load, end: End, value: &str, port: u16) -> Result<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let body = |number: u32| {
            let value =
                if load.users == 1 { value.to_owned() } else { format!("{value}-{number}") };
            let entry = grpc::entry(KEY.as_bytes(), value.as_bytes());
            grpc::prefixed(&grpc::rate_limit_request(DOMAIN.as_bytes(), &[entry]))
        };
        let bodies: Arc<Vec<_>> = Arc::new((0..load.users).map(body).collect());
        let mut connections = Vec::new();
        for _ in 0..load.connections {
            connections.push(CallConnection::open(port).await?);
        }
        let begun = Instant::now();
        let until = begun + Duration::from_secs(load.seconds.into());
        let mut tasks = JoinSet::new();
        for (seed, mut connection) in (1..).zip(connections) {
            let bodies = Arc::clone(&bodies);
            tasks.spawn(async move {
                let (mut times, mut refused, mut random) = (Vec::new(), 0, Xorshift(seed));
                let mut now = Instant::now();
                let is_over = |now, calls: usize| match end {
                    End::Time => now >= until,
                    End::Calls(most) => calls >= most as usize,
                };
                while !is_over(now, times.len()) {
                    let body = bodies.get(random.below(bodies.len())).context("no body")?;
                    let passes = timeout(PATIENCE, connection.call(body)).await;
                    refused += u64::from(!passes.context("no answer in time")??);
                    let then = Instant::now();
                    times.push(then - now);
                    now = then;
                }
                anyhow::Ok((times, refused))
            });
        }
        let (mut times, mut refused) = (Vec::new(), 0);
        while let Some(ended) = tasks.join_next().await {
            let (more, of_connection) = ended??;
            times.extend(more);
            refused += of_connection;
        }
        seen(times, refused, begun.elapsed())
    })
}

fn seen(mut times: Vec<Duration>, refused: u64, elapsed: Duration) -> Result<Seen> {
    times.sort_unstable();
    let part = |percent: usize| {
        let time = times.get(times.len() * percent / 100).copied();
        time.map(|time| time.as_secs_f64() * 1e3).context("nothing was answered")
    };
    Ok(Seen {
        rate: times.len() as f64 / elapsed.as_secs_f64(),
        p50_ms: part(50)?,
        p99_ms: part(99)?,
        requests: times.len() as u64,
        refused,
        broken: 0,
    })
}

/// Chooses keys.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// A connection that carries one call after another.
struct CallConnection {
    stream: TcpStream,
    headers: Vec<u8>,
    /// The number of the next call.
    next: u32,
    received: Vec<u8>,
}

impl CallConnection {
    async fn open(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&grpc::hello()).await?;
        Ok(Self { stream, headers: grpc::call_headers(), next: 1, received: Vec::new() })
    }

    /// Whether a request passes.
    async fn call(&mut self, body: &[u8]) -> Result<bool> {
        let call = self.next;
        self.next += 2;
        let mut out = frame(kind::HEADERS, END_HEADERS, call, &self.headers);
        out.extend(frame(kind::DATA, END_STREAM, call, body));
        self.stream.write_all(&out).await?;
        let mut code = None;
        loop {
            let mut read = 0;
            let mut ended = false;
            while let Some(rest) = self.received.get(read..)
                && let Some(head) = FrameHead::parse(rest)
                && let Some(payload) = rest.get(FRAME_HEAD..FRAME_HEAD + head.length)
            {
                read += FRAME_HEAD + head.length;
                match head.kind {
                    kind::DATA if head.stream == call => code = grpc::overall_code(payload),
                    kind::HEADERS if head.stream == call => ended |= head.flags & END_STREAM != 0,
                    kind::PING | kind::SETTINGS if head.flags & ACK == 0 => {
                        let payload = if head.kind == kind::PING { payload } else { &[] };
                        let ack = frame(head.kind, ACK, 0, payload);
                        self.stream.write_all(&ack).await?;
                    }
                    kind::GOAWAY => bail!("the service ended the connection: {payload:?}"),
                    // A reset may follow the whole answer of a call, and is then harmless.
                    kind::RESET if head.stream == call && !ended => {
                        bail!("the service ended call {call}: {payload:?}")
                    }
                    _ => {}
                }
            }
            self.received.drain(..read);
            if ended {
                return code.map(|code| code == 1).context("the call failed");
            }
            let count = self.stream.read_buf(&mut self.received).await?;
            ensure!(count > 0, "the service closed the connection");
        }
    }
}
