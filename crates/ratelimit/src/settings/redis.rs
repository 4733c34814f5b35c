//! Makes a store URL of the variables of Redis.

use std::fmt::Write as _;

use super::StoreText;
use super::reader::VariableReader;

/// A store, as the variables of Redis name it.
#[derive(Default)]
pub(super) struct NamedStore {
    /// The URL; `None` if `REDIS_URL` is not set.
    pub url: Option<StoreText>,
    /// The user, if there is one, and the password for sentinels.
    pub sentinel_login: Option<(Option<String>, StoreText)>,
}

/// The store. In URLs of sentinels, users and passwords are those of the sentinels.
pub(super) fn store(reader: &VariableReader<'_>) -> NamedStore {
    let mut of_urls = OfUrls::default();
    let url = url(reader, &mut of_urls);
    let login = reader.given("REDIS_SENTINEL_AUTH").map(|auth| {
        let (user, password) = auth.split_once(':').unzip();
        (user.map(str::to_owned), StoreText(password.unwrap_or(auth).to_owned()))
    });
    let of_sentinels = || {
        let password = of_urls.password.clone().filter(|_| of_urls.of_sentinels)?;
        Some((of_urls.user.clone(), StoreText(password)))
    };
    NamedStore { url, sentinel_login: login.or_else(of_sentinels) }
}

fn url(reader: &VariableReader<'_>, of_urls: &mut OfUrls) -> Option<StoreText> {
    let target = reader.given("REDIS_URL")?;
    let scheme = if reader.boolean("REDIS_TLS") { "rediss" } else { "redis" };
    let kind = reader.one_of(
        "REDIS_TYPE",
        &[("single", ""), ("cluster", "-cluster"), ("sentinel", "-sentinel")],
    );
    let is_socket = reader.one_of("REDIS_SOCKET_TYPE", &[("unix", true), ("tcp", false)])
        && !target.contains("://")
        && target.starts_with('/');
    if is_socket {
        return Some(StoreText(format!("redis+unix://{}{target}", login(reader, of_urls))));
    }
    // The original takes URLs, too, one for each server, and the first one that has a user, a
    // password or a database gives it to all.
    of_urls.of_sentinels = kind == "-sentinel";
    let mut entries = target.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    // The name of the primary comes first.
    let primary = if kind == "-sentinel" { entries.next() } else { None };
    let mut servers = Vec::new();
    for entry in entries {
        match of_urls.server(entry) {
            Some(server) => servers.push(server),
            None => {
                let text = "must be host:port, the path of a socket, or redis://host:port";
                reader.fault("REDIS_URL", text);
                return None;
            }
        }
    }
    let needed = match kind {
        "-sentinel" => {
            "must be the name of the primary and then the sentinels, separated by commas"
        }
        "-cluster" => "must be nodes of the cluster, separated by commas",
        _ => "must be host:port of one server, or REDIS_TYPE is CLUSTER or SENTINEL",
    };
    if servers.is_empty() || kind.is_empty() && servers.len() > 1 {
        reader.fault("REDIS_URL", needed);
        return None;
    }
    let servers = servers.join(",");
    let database = of_urls.database.as_deref().unwrap_or_default();
    let path = match (kind, primary, database) {
        // Redis Cluster has no other one.
        ("-cluster", _, _) | ("", _, "") => String::new(),
        (_, Some(primary), "") => format!("/{primary}"),
        (_, Some(primary), database) => format!("/{primary}/{database}"),
        (_, None, database) => format!("/{database}"),
    };
    let scheme = if of_urls.tls { "rediss" } else { scheme };
    let mut url = format!("{scheme}{kind}://{}{servers}{path}", login(reader, of_urls));
    let mut separator = '?';
    for (name, parameter) in [
        ("REDIS_TLS_CLIENT_CERT", "client_cert"),
        ("REDIS_TLS_CLIENT_KEY", "client_key"),
        ("REDIS_TLS_CACERT", "ca_cert"),
    ] {
        if let Some(path) = reader.given(name) {
            let path = escaped(path);
            // Writing to a String cannot fail.
            let _ = write!(url, "{separator}{parameter}={path}");
            separator = '&';
        }
    }
    Some(StoreText(url))
}

/// Settings in URLs besides the addresses of servers.
#[derive(Default)]
struct OfUrls {
    of_sentinels: bool,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
}

impl OfUrls {
    /// The address of one server. `None` if that is no address and no URL of Redis.
    fn server(&mut self, entry: &str) -> Option<String> {
        let (is_url, rest) = match entry.split_once("://") {
            Some(("redis", rest)) => (true, rest),
            Some(("rediss", rest)) => {
                self.tls = true;
                (true, rest)
            }
            Some(_) => return None,
            None => (false, entry),
        };
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        if !login.is_empty() {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            keep(&mut self.user, unescaped(user));
            keep(&mut self.password, unescaped(password));
        }
        if !is_url {
            return Some(rest.to_owned());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        keep(&mut self.database, path.to_owned());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "username" => keep(&mut self.user, value.into_owned()),
                "password" => keep(&mut self.password, value.into_owned()),
                "db" => keep(&mut self.database, value.into_owned()),
                // As in Go.
                _ => {}
            }
        }
        // A URL without a host names this machine.
        match server {
            "" => Some("127.0.0.1".to_owned()),
            port if port.starts_with(':') => Some(format!("127.0.0.1{port}")),
            server => Some(server.to_owned()),
        }
    }
}

/// The first value stays.
fn keep(known: &mut Option<String>, value: String) {
    if known.is_none() && !value.is_empty() {
        *known = Some(value);
    }
}

/// The user and the password of the servers, with an `@`. `REDIS_AUTH` stands before those of URLs.
fn login(reader: &VariableReader<'_>, of_urls: &OfUrls) -> String {
    let (user, password) = match reader.given("REDIS_AUTH") {
        Some(auth) => auth.split_once(':').unwrap_or(("", auth)),
        None if of_urls.of_sentinels => return String::new(),
        None => (
            of_urls.user.as_deref().unwrap_or_default(),
            of_urls.password.as_deref().unwrap_or_default(),
        ),
    };
    match (escaped(user), escaped(password)) {
        (user, password) if user.is_empty() && password.is_empty() => String::new(),
        (user, password) if password.is_empty() => format!("{user}@"),
        (user, password) => format!("{user}:{password}@"),
    }
}

fn unescaped(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
