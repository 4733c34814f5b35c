//! Normalized hosts.

use std::borrow::Cow;

/// A host in lower case, without port and without a trailing dot.
pub(crate) fn normalize(authority: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let host = authority.get(..host_len(&authority)).unwrap_or_default();
    let len = host.strip_suffix(b".").unwrap_or(host).len();
    let mut host = match authority {
        Cow::Borrowed(authority) => Cow::Borrowed(authority.get(..len).unwrap_or_default()),
        Cow::Owned(mut authority) => {
            authority.truncate(len);
            Cow::Owned(authority)
        }
    };
    if host.iter().any(u8::is_ascii_uppercase) {
        host.to_mut().make_ascii_lowercase();
    }
    host
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
    fn hosts_lose_port_case_and_the_last_dot() {
        for (authority, host) in [
            ("API.example.com", "api.example.com"),
            ("api.example.com:8080", "api.example.com"),
            ("api.example.com.:8080", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com..", "api.example.com."),
            ("api.example.com:", "api.example.com"),
            ("api.example.com:http", "api.example.com:http"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("2001:db8::1", "2001:db8::1"),
            (":80", ""),
            ("", ""),
        ] {
            let (borrowed, owned) = (authority.as_bytes(), authority.as_bytes().to_vec());
            assert_eq!(normalize(borrowed.into()), host.as_bytes(), "{authority}");
            assert_eq!(normalize(owned.into()), host.as_bytes(), "{authority}");
        }
    }
}
