//! Normalized hosts.

/// A host in lower case, without port and without a trailing dot.
pub(crate) fn normalize(mut authority: Vec<u8>) -> Vec<u8> {
    authority.truncate(host_len(&authority));
    if authority.last() == Some(&b'.') {
        authority.pop();
    }
    authority.make_ascii_lowercase();
    authority
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
            assert_eq!(normalize(authority.into()), host.as_bytes(), "{authority}");
        }
    }
}
