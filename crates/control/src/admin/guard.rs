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
//!
//! A request shows who sends it by a token, or by the headers of a proxy in front that has asked
//! the person to log in. Anyone can write such a header, so only those of trusted addresses count.

use std::net::IpAddr;

use axum::http::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use axum::http::uri::Authority;
use axum::http::{Method, Request};
use ipnet::IpNet;
use quotagate_operate::api::MAX_BY;
use quotagate_operate::clean_text;
use quotagate_store::server::{ListenAddr, PeerAddress, Tokens, shown_digest};

use super::error::Refusal;
use super::operator::{Operator, Shown, grants_of};

/// Most groups of a person that count.
const MAX_GROUPS: usize = 256;

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
    /// Names of this address.
    pub hosts: HostNames,
    /// A proxy that names operators.
    pub proxy: Option<TrustedProxy>,
}

/// A proxy in front of the admin address, such as oauth2-proxy, whose headers say who sends a
/// request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxy {
    /// The header with the name of the person.
    pub header: HeaderName,
    /// The header with the names of the person's groups, with commas between them.
    pub groups: HeaderName,
    /// The addresses of the proxy.
    pub from: Vec<IpNet>,
}

impl TrustedProxy {
    /// The person and the groups that a request names, if the proxy sent it.
    fn person<B>(
        &self,
        request: &Request<B>,
        peer: Option<PeerAddress>,
    ) -> Option<(String, Shown)> {
        let PeerAddress::Tcp(address) = peer? else { return None };
        let address = address.ip().to_canonical();
        if !self.from.iter().any(|network| network.contains(&address)) {
            return None;
        }
        let mut names = request.headers().get_all(&self.header).iter();
        // A proxy that adds its header to that of a client would be no proof.
        let (Some(name), None) = (names.next(), names.next()) else { return None };
        let name = clean_text(str::from_utf8(name.as_bytes()).ok()?, MAX_BY);
        let mut groups = request.headers().get_all(&self.groups).iter();
        let (list, None) = (groups.next(), groups.next()) else { return None };
        let list = list.and_then(|value| str::from_utf8(value.as_bytes()).ok());
        let groups = list.into_iter().flat_map(|value| value.split(','));
        let groups = groups.map(|group| group.trim().to_owned());
        let groups = Shown::Groups(groups.take(MAX_GROUPS).collect());
        (!name.is_empty()).then_some((name, groups))
    }
}

impl Guard {
    /// Whether an address of this reach serves operators at all.
    pub const fn serves(&self, reach: Reach) -> bool {
        self.tokens.is_some() || !matches!(reach, Reach::Network)
    }

    /// Who sends this request to an address of this reach. What the operator may do is for the
    /// path to check.
    ///
    /// # Errors
    /// Why it may not be carried out.
    pub fn check<B>(&self, request: &Request<B>, reach: Reach) -> Result<Operator, Refusal> {
        if !self.serves(reach) {
            return Err(Refusal::Open);
        }
        let headers = request.headers();
        let hosts = hosts_of(request);
        self.hosts.check(request, reach)?;
        if hosts.is_empty() && reach != Reach::Socket {
            return Err(Refusal::Host(String::new()));
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
        let operator = self.identify(request)?;
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if reads || is_json(headers) { Ok(operator) } else { Err(Refusal::NotJson) }
    }

    /// By the token of a request, else by the headers of the trusted proxy.
    fn identify<B>(&self, request: &Request<B>) -> Result<Operator, Refusal> {
        let peer = request.extensions().get::<PeerAddress>().copied();
        let tokens = self.tokens.as_ref();
        let operator = |shown: Shown, name: Option<String>, header: Option<String>| {
            let grants = grants_of(tokens, &shown)?;
            let name = name.or_else(|| grants.iter().find_map(|grant| grant.name.clone()));
            Some(Operator { name, grants, shown, header, peer, tokens: self.tokens.clone() })
        };
        let by_token = match request.headers().get(AUTHORIZATION) {
            _ if tokens.is_none() => operator(Shown::Nothing, None, None),
            Some(value) => shown_digest(value.as_bytes())
                .and_then(|digest| operator(Shown::Token(digest), None, None)),
            None => None,
        };
        let by_proxy = || {
            let proxy = self.proxy.as_ref()?;
            let (name, groups) = proxy.person(request, peer)?;
            let header = Some(proxy.header.to_string());
            let refused = Refusal::Groups { name: name.clone() };
            Some(operator(groups, Some(name), header).ok_or(refused))
        };
        by_token.map(Ok).or_else(by_proxy).unwrap_or(Err(Refusal::Token))
    }
}

/// The names of an address, in lower case, besides `localhost` and IP addresses.
#[derive(Clone, Debug, Default)]
pub struct HostNames(pub Vec<String>);

impl HostNames {
    /// Checks that a request names this address, if it names a host at all, as that of a web page
    /// always does.
    ///
    /// # Errors
    /// The host that it names.
    pub fn check<B>(&self, request: &Request<B>, reach: Reach) -> Result<(), Refusal> {
        match reach {
            Reach::Socket => Ok(()),
            Reach::Machine | Reach::Network => self.check_hosts(&hosts_of(request)),
        }
    }

    fn check_hosts(&self, hosts: &[&[u8]]) -> Result<(), Refusal> {
        for host in hosts {
            let text = str::from_utf8(host).unwrap_or_default();
            let name = Authority::try_from(text).ok().filter(|_| !text.contains('@'));
            if !name.is_some_and(|name| self.has(name.host())) {
                let shown: String = text.chars().filter(|c| !c.is_control()).take(128).collect();
                return Err(Refusal::Host(shown));
            }
        }
        Ok(())
    }

    fn has(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The hosts that a request names.
fn hosts_of<B>(request: &Request<B>) -> Vec<&[u8]> {
    let host = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let named = request.headers().get_all(HOST).iter().map(|host| host.as_bytes());
    host.into_iter().chain(named).collect()
}

/// Whether the body of a request says that it is JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
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
            .map_or_else(|refusal| refusal.into_response().status().as_u16(), |_| 200)
    }

    const JSON: (&str, &str) = ("content-type", "application/json");

    #[test]
    fn an_address_that_others_reach_wants_a_token() {
        let reach = |text: &str| Reach::of(&text.parse().unwrap());
        let (open, request) = (Guard::default(), [("host", "127.0.0.1"), JSON]);
        let closed =
            Guard { tokens: Tokens::new(b"s3cret-of-the-operators\n"), ..Guard::default() };
        let shown =
            [("host", "127.0.0.1"), JSON, ("authorization", "Bearer s3cret-of-the-operators")];
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
        let guard =
            Guard { hosts: HostNames(vec!["quotagate.svc".to_owned()]), ..Guard::default() };
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
            checked.map_or_else(|refusal| refusal.into_response().status().as_u16(), |_| 200)
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
        let guard = Guard { tokens: Tokens::new(b"s3cret-of-the-operators\n"), ..Guard::default() };
        let with = |shown| {
            status(&guard, Reach::Machine, &[("host", "[::1]"), ("authorization", shown), JSON])
        };
        assert_eq!(
            (with("Bearer s3cret-of-the-operators"), with("Bearer wrong"), with("")),
            (200, 401, 401)
        );
    }

    #[test]
    fn headers_of_a_proxy_count_only_from_its_addresses() {
        let proxy = TrustedProxy {
            header: HeaderName::from_static("x-forwarded-email"),
            groups: HeaderName::from_static("x-forwarded-groups"),
            from: vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        };
        let tokens =
            Tokens::new(b"group:sre admin *\ngroup:shop view shop\ngroup:pay operate pay\nan-unnamed-token-of-old\n");
        let guard = Guard { tokens, proxy: Some(proxy), ..Guard::default() };
        let ask = |peer: &str, headers: &[(&str, &str)]| {
            let mut request = Request::get("/v1/boards").header("host", "localhost");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let mut request = request.body(()).unwrap();
            let peer = peer.parse().map_or(PeerAddress::Unix, PeerAddress::Tcp);
            request.extensions_mut().insert(peer);
            guard.check(&request, Reach::Machine)
        };
        let ann = ("x-forwarded-email", "ann@example.com");
        let sre = ("x-forwarded-groups", "other, sre,shop");
        for peer in ["10.1.2.3:4", "[::ffff:10.1.2.3]:4", "[::1]:4"] {
            let operator = ask(peer, &[ann, sre]).unwrap();
            assert_eq!(operator.name.as_deref(), Some("ann@example.com"), "{peer}");
            assert_eq!(operator.role(None).unwrap().to_string(), "admin");
            assert_eq!(operator.header.as_deref(), Some("x-forwarded-email"));
        }
        for peer in ["11.1.2.3:4", "[::2]:4", "unix"] {
            assert!(matches!(ask(peer, &[ann, sre]), Err(Refusal::Token)), "{peer}");
        }
        let (twice, groups_twice) = ([ann, ann, sre], [ann, sre, sre]);
        let control = ("x-forwarded-email", "\t ");
        for headers in [&[sre][..], &twice, &groups_twice, &[control, sre]] {
            assert!(matches!(ask("10.1.2.3:4", headers), Err(Refusal::Token)), "{headers:?}");
        }
        for groups in ["", "other", "SRE", "sre other"] {
            let refused = ask("10.1.2.3:4", &[ann, ("x-forwarded-groups", groups)]);
            assert!(matches!(refused, Err(Refusal::Groups { .. })), "{groups}");
        }
        let both = ask("10.1.2.3:4", &[ann, ("x-forwarded-groups", "shop,pay")]).unwrap();
        let role = |domain| both.role(domain).map(|role| role.to_string());
        assert_eq!(role(None).as_deref(), Some("operate"));
        assert_eq!(role(Some("shop")).as_deref(), Some("view"), "what history records there");
        assert_eq!(role(Some("other")), None);
        let token = ("authorization", "Bearer an-unnamed-token-of-old");
        assert_eq!(ask("11.1.2.3:4", &[token]).unwrap().name, None);
        // Basic authorization, which oauth2-proxy may add, is no token.
        let basic = ("authorization", "Basic YW5uOg==");
        let operator = ask("10.1.2.3:4", &[basic, ann, ("x-forwarded-groups", "shop")]).unwrap();
        assert_eq!(operator.scope("view".parse().unwrap()).unwrap().to_string(), "shop");
    }
}
