//! What one exchange with Redis takes: PING over a warm connection. A lone request that is counted
//! exactly cannot take less.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Exchanges before the measured ones.
const WARM_UP: usize = 200;
/// Measured exchanges.
const COUNT: usize = 2000;
const PATIENCE: Duration = Duration::from_secs(5);

/// How long each of some PINGs took.
pub fn take(port: u16) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut times = Vec::with_capacity(WARM_UP + COUNT);
    for _ in 0..WARM_UP + COUNT {
        let start = Instant::now();
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).context("Redis does not answer a PING")?;
        if &reply != b"+PONG\r\n" {
            bail!("Redis answers a PING with {}", String::from_utf8_lossy(&reply));
        }
        times.push(start.elapsed());
    }
    Ok(times.split_off(WARM_UP))
}

#[cfg(test)]
mod tests {
    use quotagate_support::redis::Redis;

    use super::*;

    #[test]
    fn each_ping_is_timed() {
        let redis = Redis::start().unwrap();
        let times = take(redis.port()).unwrap();
        assert_eq!(times.len(), COUNT);
        assert!(times.iter().all(|time| !time.is_zero()));
    }
}
