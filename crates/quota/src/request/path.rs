//! Normalized paths, so that another spelling of a path does not bypass a quota.
//!
//! The filter normalizes paths itself, whatever Envoy's own normalization is set to. The upstream
//! still gets the original path. The steps, in this order:
//!
//! 1. what follows the first `?` or `#` is cut off;
//! 2. `%XX` is decoded, once; everything else stays;
//! 3. a backslash becomes a slash, and a run of slashes becomes one;
//! 4. in each segment, what follows the first `;` is cut off: upstreams such as Tomcat and Spring
//!    ignore such parameters (`;jsessionid=1`), also those of `..;x`;
//! 5. segments `.` and `..` are resolved; `..` never leads above the root.
//!
//! Other upstreams know no parameters, and a proxy on the way may resolve `..` before the upstream
//! cuts them off. So a condition also holds if it holds for one of the [`other_readings`].
//!
//! Letter case stays: most upstreams distinguish `/A` from `/a`. For one that does not, a regular
//! expression with `(?i)` matches both.

use std::borrow::Cow;

use super::percent;

/// The normalized path of `target`, a request's `:path`. A borrowed result is the beginning of
/// `target`.
pub(crate) fn normalize(target: &[u8]) -> Cow<'_, [u8]> {
    match as_given(target) {
        Some(path) => Cow::Borrowed(path),
        None => Cow::Owned(resolve(&slashes(without_query(target)))),
    }
}

fn without_query(target: &[u8]) -> &[u8] {
    target.split(|b| matches!(b, b'?' | b'#')).next().unwrap_or_default()
}

/// The other readings of a path with parameters: none if [`normalize`] borrows. The first keeps the
/// parameters, since `;` means nothing to many upstreams. The second cuts them off after a proxy
/// has resolved `..`; it is left out if it equals the normalized path.
pub(crate) fn other_readings(target: &[u8]) -> Vec<Vec<u8>> {
    let path = without_query(target);
    if !path.iter().any(|b| matches!(b, b'%' | b';')) {
        return Vec::new();
    }
    let path = slashes(path);
    if !path.contains(&b';') {
        return Vec::new();
    }
    let with_parameters = resolve_segments(&path, |segment| segment);
    let proxied = resolve(&with_parameters);
    let mut readings = vec![with_parameters];
    if proxied != resolve(&path) {
        readings.push(proxied);
    }
    readings
}

/// A normalized `path` without its trailing slash: most upstreams serve `/a` and `/a/` alike.
pub(crate) fn without_slash(path: &[u8]) -> &[u8] {
    match path {
        [whole @ .., b'/'] if !whole.is_empty() => whole,
        path => path,
    }
}

/// Normalizes the beginning of a path. Its last segment may be incomplete, so `.` and `..` mean
/// nothing there.
pub(crate) fn normalize_prefix(text: &str) -> Vec<u8> {
    let text = slashes(text.as_bytes());
    let last = text.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let (whole, begun) = text.split_at(last);
    let mut path = resolve(whole);
    path.extend_from_slice(begun);
    path
}

/// Normalizes the end of a path. `None` if it has a segment `.` or `..`, since no normalized path
/// ends so.
pub(crate) fn normalize_suffix(text: &str) -> Option<Vec<u8>> {
    let text = slashes(text.as_bytes());
    // The first segment may be incomplete.
    let dots = text.split(|b| *b == b'/').skip(1).any(|segment| matches!(segment, b"." | b".."));
    (!dots).then_some(text)
}

/// The path of `target`, if it is certainly normalized and has no parameters. Nearly all are, so
/// this looks at each byte once and copies nothing.
fn as_given(target: &[u8]) -> Option<&[u8]> {
    // What precedes a segment: a path may begin with one slash, but not with a dot.
    let (mut after_slash, mut begins) = (false, true);
    for (index, byte) in target.iter().enumerate() {
        match byte {
            b'?' | b'#' => return target.get(..index),
            b'%' | b'\\' | b';' => return None,
            b'/' if after_slash => return None,
            b'.' if after_slash || begins => return None,
            _ => {}
        }
        (after_slash, begins) = (*byte == b'/', false);
    }
    Some(target)
}

/// Decodes, and replaces each run of slashes and backslashes by one slash.
fn slashes(text: &[u8]) -> Vec<u8> {
    let mut path = percent::decode(text);
    for byte in &mut path {
        if *byte == b'\\' {
            *byte = b'/';
        }
    }
    path.dedup_by(|next, before| *next == b'/' && *before == b'/');
    path
}

/// Cuts off parameters and resolves the segments `.` and `..` of a path without repeated slashes.
fn resolve(path: &[u8]) -> Vec<u8> {
    resolve_segments(path, |segment| segment.split(|b| *b == b';').next().unwrap_or_default())
}

/// Resolves the segments `.` and `..` of a path without repeated slashes. `name` is the part of a
/// segment that counts.
fn resolve_segments(path: &[u8], name: impl Fn(&[u8]) -> &[u8]) -> Vec<u8> {
    let (root, relative) = match path.strip_prefix(b"/") {
        Some(relative) => (&b"/"[..], relative),
        None => (&b""[..], path),
    };
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut directory = false;
    for segment in relative.split(|b| *b == b'/') {
        let segment = name(segment);
        directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut out = root.to_vec();
    out.extend_from_slice(&segments.join(&b'/'));
    // A path that ends in a slash, `.` or `..` names a directory.
    if directory && !segments.is_empty() {
        out.push(b'/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (target, path) in [
            ("/", "/"),
            ("/api/x", "/api/x"),
            ("/api/x?q=/../#f", "/api/x"),
            ("/api/x#f?q", "/api/x"),
            ("?q", ""),
            ("", ""),
            ("*", "*"),
            ("/%61pi/%78", "/api/x"),
            ("/%2561pi", "/%61pi"),
            ("/api%2Fx", "/api/x"),
            ("/api%2fx", "/api/x"),
            ("%2Fapi", "/api"),
            ("/api%3Fx%23y", "/api?x#y"),
            ("/100%", "/100%"),
            ("/a%2", "/a%2"),
            ("/api\\x", "/api/x"),
            ("\\api%5Cx", "/api/x"),
            ("//api///x", "/api/x"),
            ("/%2F/api", "/api"),
            ("/api//", "/api/"),
            ("/./api/./x", "/api/x"),
            ("/x/../api/x", "/api/x"),
            ("/x/%2e%2E/api/x", "/api/x"),
            ("/x/..%2fapi", "/api"),
            ("/../../api", "/api"),
            ("/api/x/..", "/api/"),
            ("/api/x/../", "/api/"),
            ("/api/.", "/api/"),
            ("/..", "/"),
            ("/api//../x", "/x"),
            ("/api/.hidden", "/api/.hidden"),
            ("/api/..hidden/...", "/api/..hidden/..."),
            ("/API/x", "/API/x"),
            ("/api;v=1/x", "/api/x"),
            ("/api/x;jsessionid=1;b", "/api/x"),
            ("/api/x%3Bv=1?q", "/api/x"),
            ("/api/x%253Bv", "/api/x%3Bv"),
            ("/api/x;a/", "/api/x/"),
            ("/api/;a", "/api/"),
            ("/;a/api", "/api"),
            ("/x/..;a/api", "/api"),
            ("/.;a/api", "/api"),
            ("/api/x;/../y", "/api/y"),
            (";a", ""),
            ("./api", "api"),
            ("api/x", "api/x"),
            ("../..", ""),
        ] {
            assert_eq!(text(normalize(target.as_bytes()).into_owned()), path, "{target}");
        }
        assert_eq!(&*normalize(b"/\xff%fe%00"), b"/\xff\xfe\0");
    }

    #[test]
    fn a_path_taken_for_normal_does_not_change() {
        // Every path of up to six bytes over all characters that have a meaning.
        let alphabet = b"/.\\%2ea;";
        let mut paths: Vec<Vec<u8>> = vec![Vec::new()];
        for _ in 0..6 {
            let longer: Vec<Vec<u8>> = paths
                .iter()
                .flat_map(|path| alphabet.iter().map(move |b| [path.as_slice(), &[*b]].concat()))
                .collect();
            for path in &longer {
                let normal = resolve(&slashes(path));
                if let Some(given) = as_given(path) {
                    assert_eq!(given, without_query(path), "{}", path.escape_ascii());
                    assert_eq!(given, resolve(&slashes(given)), "{}", path.escape_ascii());
                    assert!(other_readings(path).is_empty(), "{}", path.escape_ascii());
                }
                let again = resolve(&slashes(&normal));
                assert!(normal.contains(&b'%') || again == normal, "{}", path.escape_ascii());
            }
            paths = longer;
        }
    }

    #[test]
    fn a_trailing_slash_is_removed_except_from_the_root() {
        for (path, expected) in
            [("/login/", "/login"), ("/login", "/login"), ("/", "/"), ("", ""), ("*", "*")]
        {
            assert_eq!(without_slash(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

    #[test]
    fn the_last_segment_of_a_prefix_may_be_incomplete() {
        for (prefix, expected) in [
            ("/api/", "/api/"),
            ("/api", "/api"),
            ("/x/../api", "/api"),
            ("//api\\%78", "/api/x"),
            ("/api/.", "/api/."),
            ("/api/..", "/api/.."),
            ("/api/../", "/"),
            ("*", "*"),
        ] {
            assert_eq!(text(normalize_prefix(prefix)), expected, "{prefix}");
        }
    }

    #[test]
    fn the_first_segment_of_a_suffix_may_be_incomplete() {
        for (suffix, expected) in [
            (".png", Some(".png")),
            ("/a%20b", Some("/a b")),
            ("//x", Some("/x")),
            ("../x", Some("../x")),
            ("/../x", None),
            ("x/.", None),
            ("x/%2e%2e", None),
        ] {
            assert_eq!(normalize_suffix(suffix).map(text).as_deref(), expected, "{suffix}");
        }
    }
}
