//! Makes a store URL of the variables of Redis.

use std::fmt::Write as _;

use super::StoreText;
use super::reader::VariableReader;

/// The URL of the store; `None` if `REDIS_URL` is not set.
pub(super) fn store(reader: &VariableReader<'_>) -> Option<StoreText> {
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
        return Some(StoreText(format!("redis+unix://{}{target}", login(reader, ""))));
    }
    // The original takes URLs, too.
    let (of_url, target) = match target.split_once("://") {
        Some(("redis", rest)) => (scheme, rest),
        Some(("rediss", rest)) => ("rediss", rest),
        Some(_) => {
            reader.fault("REDIS_URL", "must be host:port, the path of a socket, or redis://");
            return None;
        }
        None => (scheme, target),
    };
    let (of_target, servers) =
        target.rsplit_once('@').map_or(("", target), |(user, rest)| (user, rest));
    let servers = match kind {
        // The name of the primary comes first.
        "-sentinel" => {
            let Some((primary, sentinels)) = servers.split_once(',') else {
                let text = "must be the name of the primary and then the sentinels, separated by \
                            commas";
                reader.fault("REDIS_URL", text);
                return None;
            };
            format!("{sentinels}/{primary}")
        }
        _ => servers.to_owned(),
    };
    let mut url = format!("{of_url}{kind}://{}{servers}", login(reader, of_target));
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

/// The user and the password, with an `@`. `of_url` stands in the URL itself.
fn login(reader: &VariableReader<'_>, of_url: &str) -> String {
    match reader.given("REDIS_AUTH") {
        None if of_url.is_empty() => String::new(),
        None => format!("{of_url}@"),
        Some(auth) => {
            let (user, password) = auth.split_once(':').unwrap_or(("", auth));
            format!("{}:{}@", escaped(user), escaped(password))
        }
    }
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
