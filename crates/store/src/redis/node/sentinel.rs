//! Asks sentinels for a primary. The store believes most of them.

use std::cmp::Reverse;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, cmd};

use super::patience::Patience;
use crate::address::HostPort;
use crate::login::{Login, Peer};

/// The longest that one sentinel may take to connect, and to answer, unless callers wait longer.
const SENTINEL: Duration = Duration::from_millis(300);

/// The servers that sentinels call the primary `name`, and how many sentinels name each. The one
/// that most sentinels name comes first.
///
/// # Errors
/// When no sentinel names one: what the last one said.
pub async fn primaries(
    sentinels: &[HostPort],
    login: &Login,
    name: &str,
    patience: &Patience,
) -> Result<Vec<(HostPort, usize)>, String> {
    let limit = Some(patience.at_least(SENTINEL));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
    let ask = async |index: usize, sentinel| {
        let answer = primary(sentinel, login, name, &config).await;
        (index, answer.map_err(|error| fault(sentinel, login, &error)))
    };
    let mut answers: FuturesUnordered<_> =
        sentinels.iter().enumerate().map(|(index, sentinel)| ask(index, sentinel)).collect();
    let mut last = "there is no sentinel".to_owned();
    // A server, its votes, and the index of the first sentinel that names it.
    let mut named: Vec<(HostPort, usize, usize)> = Vec::new();
    while let Some((index, answer)) = answers.next().await {
        let address = match answer {
            Ok(address) => address,
            Err(error) => {
                last = error;
                continue;
            }
        };
        match named.iter_mut().find(|(known, ..)| *known == address) {
            Some((_, votes, first)) => (*votes, *first) = (*votes + 1, index.min(*first)),
            None => named.push((address, 1, index)),
        }
        // Where most sentinels agree, the store does not wait for those that are gone.
        if named.iter().any(|(_, votes, _)| *votes > sentinels.len() / 2) {
            break;
        }
    }
    named.sort_by_key(|(_, votes, first)| (Reverse(*votes), *first));
    let named: Vec<_> = named.into_iter().map(|(address, votes, _)| (address, votes)).collect();
    if named.is_empty() { Err(last) } else { Ok(named) }
}

/// Describes the fault of a sentinel, and the remedy.
fn fault(sentinel: &HostPort, login: &Login, error: &RedisError) -> String {
    let is_refused = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    let remedy = match &login.sentinel {
        _ if !is_refused => "",
        Some(_) => ": check the credentials of the sentinels",
        None => {
            ": it got none, or those of the servers. Name its own in sentinel_password_file, or REDIS_SENTINEL_AUTH"
        }
    };
    format!("the sentinel at {sentinel} says {error}{remedy}")
}

/// The primary that one sentinel names.
async fn primary(
    sentinel: &HostPort,
    login: &Login,
    name: &str,
    config: &AsyncConnectionConfig,
) -> Result<HostPort, RedisError> {
    let mut ask = cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let connected = login.connect(sentinel, Peer::Sentinel, config).await;
    let asked = match connected {
        Ok(mut connection) => ask.query_async(&mut connection).await,
        Err(error) => Err(error),
    };
    let answer: Option<(String, u16)> = match asked {
        Ok(answer) => answer,
        // A sentinel that got credentials of its own does not get those of the servers as well.
        Err(error) if error.code() == Some("NOAUTH") && login.sentinel.is_none() => {
            ask.query_async(&mut login.connect(sentinel, Peer::GuardedSentinel, config).await?)
                .await?
        }
        Err(error) => return Err(error),
    };
    let Some((host, port)) = answer else {
        let detail = name.to_owned();
        return Err((ErrorKind::MasterNameNotFoundBySentinel, "unknown primary", detail).into());
    };
    Ok(HostPort { host, port })
}
