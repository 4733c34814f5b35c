//! A network of its own, whose packets can be dropped: a network namespace, and a pair of virtual
//! interfaces that joins it to this one.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Networks of four addresses in 198.18.0.0/15, which is for tests of networks (RFC 2544).
const NETWORKS: u32 = 1 << 15;
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// A network namespace with one address that this one reaches, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// The interface on this side.
    ours: String,
    theirs: String,
    address: Ipv4Addr,
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// When `ip` is missing or fails: it needs root.
    pub fn new() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (id, number) = (process::id(), MADE.fetch_add(1, Relaxed));
        let name = format!("qg{id}n{number}");
        let network = FIRST + (id.wrapping_mul(8).wrapping_add(number) % NETWORKS) * 4;
        let address = Ipv4Addr::from(network + 2);
        let made = Self { ours: format!("{name}a"), theirs: format!("{name}b"), name, address };
        let Self { name, ours, theirs, address } = &made;
        ip(&["netns", "add", name])?;
        ip(&["link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name])?;
        ip(&["addr", "add", &format!("{}/30", Ipv4Addr::from(network + 1)), "dev", ours])?;
        ip(&["link", "set", ours, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", theirs])?;
        ip(&["-n", name, "link", "set", theirs, "up"])?;
        // The kernel would find out within seconds that nobody has the address any more, and refuse
        // connections. A host behind a router just does not answer.
        let link = ip(&["-n", name, "-o", "link", "show", theirs])?;
        let mac = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        let mac = mac.with_context(|| format!("{theirs} has no address of its own: {link}"))?;
        let neighbour = address.to_string();
        ip(&["neigh", "replace", &neighbour, "lladdr", mac, "dev", ours, "nud", "permanent"])?;
        Ok(made)
    }

    /// The address in the namespace.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What `task` returns within the namespace. Sockets that it opens stay there.
    ///
    /// # Errors
    /// When the thread cannot enter the namespace, or `task` fails.
    pub fn within<T: Send>(&self, task: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = format!("/run/netns/{}", self.name);
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let entered = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("cannot enter {path}"))?;
            task()
        };
        thread::scope(|scope| scope.spawn(entered).join())
            .map_err(|_| anyhow!("a thread in {path} has panicked"))?
    }

    /// Drops every packet to and from the namespace. Nobody is told.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn cut(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", &self.theirs, "down"]).map(drop)
    }

    /// Forwards packets again.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn mend(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", &self.theirs, "up"]).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The interface first: sockets keep the namespace alive. `drop` cannot report a failure.
        let _ = ip(&["link", "del", &self.ours]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.context("`ip` is missing: install iproute2 (`cargo xtask setup`)")?;
    let [out, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    if !output.status.success() {
        bail!("`ip {}` failed, which needs root: {errors}", arguments.join(" "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn cut_network_answers_nothing_until_it_is_mended() {
        let namespace = Namespace::new().unwrap();
        let address = namespace.address();
        let listener = namespace.within(|| Ok(TcpListener::bind((address, 0))?)).unwrap();
        let to = SocketAddr::from((address, listener.local_addr().unwrap().port()));
        let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(300));
        connect().unwrap();
        namespace.cut().unwrap();
        assert_eq!(connect().unwrap_err().kind(), ErrorKind::TimedOut);
        namespace.mend().unwrap();
        TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
    }
}
