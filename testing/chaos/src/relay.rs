//! The network between Envoy and the store, or Redis: a TCP relay that can stop forwarding, delay
//! answers, or cut them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::Result;

/// How soon a changed [`Weather`] takes effect.
const GLANCE: Duration = Duration::from_millis(10);
/// How long the end waits for the thread that accepts. Where packets are dropped, it never wakes.
const WAKES: Duration = Duration::from_millis(100);

/// What the network does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Forwards them.
    Fair,
    /// Keeps connections open and accepts new ones, but forwards nothing.
    Still,
    /// Delays answers by so much.
    Late(Duration),
    /// Forwards half of an answer and closes.
    Cutting,
}

#[derive(Debug)]
struct RelayState {
    to: u16,
    weather: Mutex<Weather>,
    over: AtomicBool,
}

/// A relay, ended when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<RelayState>,
}

impl Relay {
    /// Starts one on a free port of 127.0.0.1, to this port of 127.0.0.1.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start(to: u16) -> Result<Self> {
        Self::start_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, to)
    }

    /// Starts one behind this listener.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start_on(listener: TcpListener, to: u16) -> Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(RelayState {
            to,
            weather: Mutex::new(Weather::Fair),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("relay".to_owned()).spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Relaxed) {
                    return;
                }
                // A connection that fails is lost to its client, as in any network.
                let _ =
                    client.map_err(anyhow::Error::from).and_then(|client| accepting.join(&client));
            }
        })?;
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the weather, for open connections too.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect_timeout(&self.address, WAKES);
    }
}

impl RelayState {
    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>, client: &TcpStream) -> Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.to))?;
        for (from, to, answers) in [(client, &server, false), (&server, client, true)] {
            let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(self));
            from.set_read_timeout(Some(GLANCE))?;
            to.set_nodelay(true)?;
            thread::Builder::new().name("relayed".to_owned()).spawn(move || {
                // If one direction ends, the whole connection ends.
                let _ = shared.forward(&from, &to, answers);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            })?;
        }
        Ok(())
    }

    fn forward(&self, mut from: &TcpStream, mut to: &TcpStream, answers: bool) -> Result<()> {
        let mut buffer = [0; 65_536];
        while !self.over.load(Relaxed) {
            if self.weather() == Weather::Still {
                sleep(GLANCE);
                continue;
            }
            let length = match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // Bytes that came in while the network stood still stay in it.
            while self.weather() == Weather::Still && !self.over.load(Relaxed) {
                sleep(GLANCE);
            }
            let bytes = buffer.get(..length).unwrap_or_default();
            match self.weather() {
                Weather::Late(by) if answers => sleep(by),
                Weather::Cutting if answers => {
                    return Ok(to.write_all(bytes.get(..length / 2).unwrap_or_default())?);
                }
                _ => {}
            }
            to.write_all(bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use quotagate_support::http::{Client, Request};
    use quotagate_support::upstream::Upstream;

    use super::*;

    #[test]
    fn relay_forwards_freezes_and_cuts() {
        let upstream = Upstream::start().unwrap();
        let relay = Relay::start(upstream.port()).unwrap();
        let mut client = Client::connect(relay.port()).unwrap();
        assert_eq!(client.send(&Request::get("/")).unwrap().status, 200);
        relay.set(Weather::Late(Duration::from_millis(50)));
        let asked = Instant::now();
        assert_eq!(client.send(&Request::get("/")).unwrap().status, 200);
        assert!(asked.elapsed() >= Duration::from_millis(50));
        relay.set(Weather::Still);
        client.set_timeout(Duration::from_millis(100)).unwrap();
        assert!(client.send(&Request::get("/")).is_err());
        assert_eq!(upstream.requests(), 2);
        relay.set(Weather::Cutting);
        let mut client = Client::connect(relay.port()).unwrap();
        let error = format!("{:#}", client.send(&Request::get("/")).unwrap_err());
        assert!(error.contains("closed"), "{error}");
    }
}
