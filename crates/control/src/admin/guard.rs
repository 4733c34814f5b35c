//! Who may use the paths under `/v1/` of the admin address.
//!
//! A page of another site in an operator's browser can send requests to any address that the
//! browser reaches. Three rules protect the operator:
//!
//! * The page can read responses if its own name resolves to this address (DNS rebinding). So the
//!   host in a request must be a name that no one else can own.
//! * The page can send forms. So a change must be JSON, which a form cannot send, and an `Origin`
//!   must be this address.
//! * The page can load any path as an image, and keep the connection open. So `Sec-Fetch-Site` must
//!   not name another site.
//!
//! Without a token, an address that other machines can connect to serves none of those paths.

use std::net::IpAddr;

use axum::http::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use axum::http::uri::Authority;
use axum::http::{Method, Request};
use quotagate_store::server::{ListenAddr, Tokens};

use super::error::Refusal;

/// How the page that sends a request relates to this address. Browsers set it; pages cannot.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// From where clients can connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A Unix socket: file permissions decide who can connect, and browsers cannot.
    Socket,
    /// A loopback address: from this machine only.
    Machine,
    /// From wherever the network allows.
    Network,
}

impl Reach {
    /// The reach of a bound address.
    pub const fn of(address: &ListenAddr) -> Self {
        match address {
            ListenAddr::Unix(_) => Self::Socket,
            ListenAddr::Tcp(address) if address.ip().is_loopback() => Self::Machine,
            ListenAddr::Tcp(_) => Self::Network,
        }
    }
}

/// What a request of an operator must show.
#[derive(Default)]
pub struct Guard {
    /// One of these tokens; `None`: no token is required.
    pub tokens: Option<Tokens>,
    /// Names of this address, in lower case, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

impl Guard {
    /// Whether an address of this reach serves operators at all.
    pub const fn serves(&self, reach: Reach) -> bool {
        self.tokens.is_some() || !matches!(reach, Reach::Network)
    }

    /// Whether this request may be carried out on an address of this reach.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check<B>(&self, request: &Request<B>, reach: Reach) -> Result<(), Refusal> {
        if !self.serves(reach) {
            return Err(Refusal::Open);
        }
        let headers = request.headers();
        let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let host = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let named = headers.get_all(HOST).iter().map(|host| host.as_bytes());
        let hosts: Vec<&[u8]> = host.into_iter().chain(named).collect();
        if reach != Reach::Socket {
            self.check_hosts(&hosts)?;
        }
        for origin in headers.get_all(ORIGIN) {
            let own = |host: &&[u8]| {
                let of = |scheme: &[u8]| origin.as_bytes().strip_prefix(scheme);
                let origin = of(b"http://").or_else(|| of(b"https://"));
                origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
            };
            if !hosts.iter().any(own) {
                return Err(Refusal::Origin);
            }
        }
        // An image or a script is loaded without an Origin. `none` means that the user typed the
        // address.
        let sites = headers.get_all(SITE).iter();
        if sites.map(HeaderValue::as_bytes).any(|site| !matches!(site, b"same-origin" | b"none")) {
            return Err(Refusal::Origin);
        }
        if self.tokens.as_ref().is_some_and(|tokens| !tokens.admits(given)) {
            return Err(Refusal::Token);
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if reads || is_json(headers) { Ok(()) } else { Err(Refusal::NotJson) }
    }

    fn check_hosts(&self, hosts: &[&[u8]]) -> Result<(), Refusal> {
        for host in hosts {
            let text = str::from_utf8(host).unwrap_or_default();
            let name = Authority::try_from(text).ok().filter(|_| !text.contains('@'));
            if !name.is_some_and(|name| self.is_ours(name.host())) {
                let shown: String = text.chars().filter(|c| !c.is_control()).take(128).collect();
                return Err(Refusal::Host(shown));
            }
        }
        if hosts.is_empty() { Err(Refusal::Host(String::new())) } else { Ok(()) }
    }

    fn is_ours(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    })
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn status(guard: &Guard, reach: Reach, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::put("/v1/dials");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        guard
            .check(&request, reach)
            .map_or_else(|refusal| refusal.into_response().status().as_u16(), |()| 200)
    }

    const JSON: (&str, &str) = ("content-type", "application/json");

    #[test]
    fn an_address_that_others_reach_wants_a_token() {
        let reach = |text: &str| Reach::of(&text.parse().unwrap());
        let (open, request) = (Guard::default(), [("host", "127.0.0.1"), JSON]);
        let closed = Guard { tokens: Tokens::new(b"s3cret"), ..Guard::default() };
        let shown = [("host", "127.0.0.1"), JSON, ("authorization", "Bearer s3cret")];
        for (address, without) in [
            ("127.0.0.1:9181", 200),
            ("[::1]:9181", 200),
            ("unix:/run/q.sock", 200),
            ("0.0.0.0:9181", 403),
            ("[::]:9181", 403),
            ("192.0.2.7:9181", 403),
        ] {
            assert_eq!(status(&open, reach(address), &request), without, "{address}");
            assert_eq!(status(&closed, reach(address), &request), 401, "{address}");
            assert_eq!(status(&closed, reach(address), &shown), 200, "{address}");
        }
    }

    #[test]
    fn only_names_that_no_one_else_can_own_are_served() {
        let guard = Guard { tokens: None, hosts: vec!["quotagate.svc".to_owned()] };
        for good in [
            "127.0.0.1:9181",
            "127.0.0.1",
            "[::1]:9181",
            "[::1]",
            "localhost:1",
            "LOCALHOST",
            "Quotagate.svc:80",
        ] {
            assert_eq!(status(&guard, Reach::Machine, &[("host", good), JSON]), 200, "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9181",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "a b",
            "127.0.0.1@evil.example",
            "localhost@evil.example:9181",
            "1.2.3",
        ] {
            assert_eq!(status(&guard, Reach::Machine, &[("host", bad), JSON]), 421, "{bad}");
            assert_eq!(
                status(&guard, Reach::Socket, &[("host", bad), JSON]),
                200,
                "a socket: {bad}"
            );
        }
        assert_eq!(status(&guard, Reach::Machine, &[JSON]), 421);
        assert_eq!(
            status(
                &guard,
                Reach::Machine,
                &[("host", "localhost"), ("host", "evil.example"), JSON]
            ),
            421
        );
    }

    #[test]
    fn other_sites_are_refused() {
        let guard = Guard::default();
        let host = ("host", "127.0.0.1:9181");
        assert_eq!(
            status(&guard, Reach::Machine, &[host, ("origin", "http://127.0.0.1:9181"), JSON]),
            200
        );
        for origin in [
            "null",
            "https://evil.example",
            "http://127.0.0.1",
            "http://127.0.0.1:9182",
            "127.0.0.1:9181",
        ] {
            assert_eq!(
                status(&guard, Reach::Machine, &[host, ("origin", origin), JSON]),
                403,
                "{origin}"
            );
            assert_eq!(
                status(&guard, Reach::Socket, &[host, ("origin", origin), JSON]),
                403,
                "{origin}"
            );
        }
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=application/json",
        ] {
            assert_eq!(
                status(&guard, Reach::Machine, &[host, ("content-type", kind)]),
                415,
                "{kind}"
            );
        }
        assert_eq!(
            status(
                &guard,
                Reach::Machine,
                &[host, ("content-type", "Application/JSON; charset=utf-8")]
            ),
            200
        );
        assert_eq!(status(&guard, Reach::Machine, &[host]), 415);
    }

    #[test]
    fn loads_from_other_sites_are_refused() {
        let host = ("host", "127.0.0.1:9181");
        let get = |site: &[(&str, &str)]| {
            let headers = site.iter().chain([&host]);
            let request = headers.fold(Request::get("/v1/events"), |request, (name, value)| {
                request.header(*name, *value)
            });
            let checked = Guard::default().check(&request.body(()).unwrap(), Reach::Machine);
            checked.map_or_else(|refusal| refusal.into_response().status().as_u16(), |()| 200)
        };
        assert_eq!(get(&[]), 200, "a command");
        for (site, status) in [
            ("same-origin", 200),
            ("none", 200),
            ("same-site", 403),
            ("cross-site", 403),
            ("", 403),
            ("other", 403),
        ] {
            assert_eq!(get(&[("sec-fetch-site", site)]), status, "{site:?}");
        }
        assert_eq!(get(&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")]), 403);
    }

    #[test]
    fn token_is_required() {
        let guard = Guard { tokens: Tokens::new(b"s3cret"), hosts: vec![] };
        let with = |shown| {
            status(&guard, Reach::Machine, &[("host", "[::1]"), ("authorization", shown), JSON])
        };
        assert_eq!((with("Bearer s3cret"), with("Bearer wrong"), with("")), (200, 401, 401));
    }
}
