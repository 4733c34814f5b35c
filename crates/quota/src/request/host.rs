//! Normalized hosts, so that another spelling of a host opens no fresh quota.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use super::percent;

/// A host in lower case, without user, port and trailing dots. `%XX` is decoded once, and an IPv6
/// address has its shortest form. If nothing is left, as of `u@`, the host is `.`: its client has
/// named a host, and does not leave a policy that skips those without.
pub(crate) fn normalize(authority: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let is_given = !authority.is_empty();
    let authority = match authority.iter().any(|b| matches!(b, b'@' | b'%')) {
        true => Cow::Owned(without_user(&percent::decode(&authority)).to_vec()),
        false => authority,
    };
    let host = authority.get(..host_len(&authority)).unwrap_or_default();
    if let Some(address) = ipv6(host) {
        return Cow::Owned(format!("[{address}]").into_bytes());
    }
    let dots = host.iter().rev().take_while(|b| **b == b'.').count();
    let len = host.len() - dots;
    let mut host = match authority {
        Cow::Borrowed(authority) => Cow::Borrowed(authority.get(..len).unwrap_or_default()),
        Cow::Owned(mut authority) => {
            authority.truncate(len);
            Cow::Owned(authority)
        }
    };
    if is_given && host.is_empty() {
        return Cow::Borrowed(b".");
    }
    if host.iter().any(u8::is_ascii_uppercase) {
        host.to_mut().make_ascii_lowercase();
    }
    host
}

/// Removes all up to the last `@`.
fn without_user(authority: &[u8]) -> &[u8] {
    authority.rsplit(|b| *b == b'@').next().unwrap_or_default()
}

/// The address in brackets, unless it is written in its shortest form already.
fn ipv6(host: &[u8]) -> Option<Ipv6Addr> {
    let text = std::str::from_utf8(host).ok()?.strip_prefix('[')?.strip_suffix(']')?;
    text.parse().ok().filter(|address: &Ipv6Addr| address.to_string() != text)
}

/// How many bytes come before the port. The port follows the last `:` and has only digits. A `:` of
/// a bare IPv6 address begins no port.
fn host_len(authority: &[u8]) -> usize {
    let Some(colon) = authority.iter().rposition(|b| *b == b':') else {
        return authority.len();
    };
    let (host, port) = authority.split_at(colon);
    let bracketed = host.first() == Some(&b'[') && host.last() == Some(&b']');
    if port.iter().skip(1).all(u8::is_ascii_digit) && (bracketed || !host.contains(&b':')) {
        colon
    } else {
        authority.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_spelling() {
        for (authority, host) in [
            ("API.example.com", "api.example.com"),
            ("api.example.com:8080", "api.example.com"),
            ("api.example.com.:8080", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com..", "api.example.com"),
            ("user@api.example.com", "api.example.com"),
            ("a:b@c@API.example.com.:80", "api.example.com"),
            ("api%2Eexample.com%2e", "api.example.com"),
            ("a%40api.example.com%3A80", "api.example.com"),
            ("api%252eexample.com", "api%2eexample.com"),
            ("%zz", "%zz"),
            ("[2001:DB8:0:0::1]:443", "[2001:db8::1]"),
            ("[::ffff:192.0.2.7]", "[::ffff:192.0.2.7]"),
            ("[v1.x]", "[v1.x]"),
            ("a..b", "a..b"),
            ("..", "."),
            ("u@", "."),
            ("%2e", "."),
            ("api.example.com:", "api.example.com"),
            ("api.example.com:http", "api.example.com:http"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("2001:db8::1", "2001:db8::1"),
            (":80", "."),
            ("", ""),
        ] {
            let (borrowed, owned) = (authority.as_bytes(), authority.as_bytes().to_vec());
            assert_eq!(normalize(borrowed.into()), host.as_bytes(), "{authority}");
            assert_eq!(normalize(owned.into()), host.as_bytes(), "{authority}");
        }
    }
}
