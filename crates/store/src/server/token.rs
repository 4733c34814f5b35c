//! The bearer tokens that callers and operators show.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::grant::{DomainScope, OperatorGrant, OperatorRole};
use crate::secret::{Secret, SecretError, SecretFile};

/// Most faults that an error lists.
const MAX_FAULTS: usize = 20;
/// Shortest token without a name: a shorter word can be guessed, or is a name whose rest is
/// missing.
const MIN_TOKEN: usize = 20;
/// What begins a line for the members of a group.
const GROUP: &str = "group:";

/// The SHA-256 of a token.
pub type TokenDigest = [u8; 32];

/// The digest of a token. It is no secret if the token is long and random: nobody can guess a token
/// of 256 random bits, however fast the digest is.
pub fn digest_of(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

/// The valid tokens; a caller shows one of them. Clones share the tokens and their updates. The
/// content is never shown.
///
/// A line of a token file is one of these; empty lines and those that begin with `# ` do not count:
///
/// * `TOKEN`: a token without a name. Proxies and operators may show it, and an operator may do
///   everything with it.
/// * `NAME ROLE DOMAINS SHA256`: a token of an operator, by its digest; with the role `call`, one
///   of the proxies of these domains.
/// * `group:NAME ROLE DOMAINS`: what the members of a group may do whom a trusted proxy names.
///
/// A token is replaced without an outage in three steps: add the new one to the file, give it to
/// the callers, and remove the old one from the file.
#[derive(Clone)]
pub struct Tokens(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<TokenLines>),
    File(Arc<SecretFile<TokenLines>>),
}

#[derive(Default, PartialEq, Eq)]
struct TokenLines {
    tokens: Vec<(TokenDigest, Arc<OperatorGrant>)>,
    groups: HashMap<String, Vec<Arc<OperatorGrant>>>,
}

impl Tokens {
    /// Reads the tokens in a file.
    ///
    /// # Errors
    /// When the file cannot be read, holds no token, or has faults: all of them.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        Ok(Self(Source::File(Arc::new(SecretFile::open(path)?))))
    }

    /// The tokens in the text of a file; `None` if it has faults.
    pub fn new(text: &[u8]) -> Option<Self> {
        Some(Self(Source::Fixed(Arc::new(TokenLines::parse(text).ok()?))))
    }

    /// Reads the file again. If it holds no tokens now, the tokens that it held before stay valid.
    pub fn read_again(&self) {
        let Source::File(file) = &self.0 else { return };
        let before = file.last();
        if let Ok(now) = file.read()
            && before.is_some_and(|before| before != now)
        {
            let TokenLines { tokens, groups } = &*now;
            tracing::info!(
                "{} has changed: {} tokens and {} groups are valid now",
                file.path().display(),
                tokens.len(),
                groups.len()
            );
        }
    }

    /// The domains for which an `Authorization` header shows a valid token of callers: all if it
    /// has no name, else those of its line, which says `call`.
    pub fn called_domains(&self, authorization: &[u8]) -> Option<DomainScope> {
        let grant = shown_digest(authorization).and_then(|digest| self.grant(&digest))?;
        let is_callers = grant.name.is_none() || grant.role == OperatorRole::Call;
        is_callers.then(|| grant.domains.clone())
    }

    /// What the holder of the token with this digest may do; `None` if it is not valid. Takes the
    /// same time for all wrong tokens.
    pub fn grant(&self, digest: &TokenDigest) -> Option<Arc<OperatorGrant>> {
        let lines = self.lines()?;
        let mut found = None;
        for (valid, grant) in &lines.tokens {
            if bool::from(valid.ct_eq(digest)) {
                found = Some(Arc::clone(grant));
            }
        }
        found
    }

    /// What the members of these groups may do.
    pub fn grants_of<'g>(
        &self,
        groups: impl IntoIterator<Item = &'g str>,
    ) -> Vec<Arc<OperatorGrant>> {
        let Some(lines) = self.lines() else { return Vec::new() };
        groups.into_iter().filter_map(|group| lines.groups.get(group)).flatten().cloned().collect()
    }

    fn lines(&self) -> Option<Arc<TokenLines>> {
        match &self.0 {
            Source::Fixed(tokens) => Some(Arc::clone(tokens)),
            Source::File(file) => file.last(),
        }
    }
}

/// The digest of the token that an `Authorization` header shows.
pub fn shown_digest(authorization: &[u8]) -> Option<TokenDigest> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| digest_of(token.trim_ascii()))
}

impl Secret for TokenLines {
    const EXPECTED: &'static str =
        "tokens of visible ASCII characters, one on each line, in at most 64 KiB";

    fn parse(content: &[u8]) -> Result<Self, Vec<String>> {
        let text = str::from_utf8(content).map_err(|_| Vec::new())?;
        let (mut lines, mut faults) = (Self::default(), Vec::new());
        let unended = text.lines().next_back().filter(|_| !text.ends_with('\n'));
        for (number, line) in (1_usize..).zip(text.lines()) {
            let is_unended = unended.is_some_and(|last| std::ptr::eq(last, line));
            let line = line.trim();
            if line.is_empty() || line.starts_with("# ") {
                continue;
            }
            if let Err(fault) = lines.add(line).and_then(|()| check_whole(line, is_unended)) {
                faults.push(format!("line {number}: {fault}"));
            }
        }
        let more = faults.len().saturating_sub(MAX_FAULTS);
        if more > 0 {
            faults.truncate(MAX_FAULTS);
            faults.push(format!("and {more} more"));
        }
        let is_empty = lines.tokens.is_empty() && lines.groups.is_empty();
        if faults.is_empty() && !is_empty { Ok(lines) } else { Err(faults) }
    }
}

impl TokenLines {
    /// Adds a line.
    ///
    /// # Errors
    /// What is wrong with it, and the remedy. A line may hold a secret, so the text shows no part
    /// of it.
    fn add(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match *words.as_slice() {
            [token, ..] if token.starts_with(GROUP) => {
                let [group, role, domains] = *words.as_slice() else {
                    return Err(
                        "the line of a group must be group:NAME ROLE DOMAINS: leave no spaces \
                                within a part"
                            .to_owned(),
                    );
                };
                let name = group.strip_prefix(GROUP).unwrap_or_default().to_owned();
                if name.is_empty() {
                    return Err("write the name of the group after group:".to_owned());
                }
                let grant = OperatorGrant {
                    name: Some(name.clone()),
                    role: role.parse()?,
                    domains: domains.parse()?,
                };
                self.groups.entry(name).or_default().push(grant.into());
            }
            [token] if token.bytes().all(|b| b.is_ascii_graphic()) => {
                let digest = digest_of(token.as_bytes());
                // The last line would win, and give the holder of the name everything.
                if self.tokens.iter().any(|(other, of)| *other == digest && of.name.is_some()) {
                    return Err(
                        "an earlier line has the same token under a name: make another one"
                            .to_owned(),
                    );
                }
                self.tokens.push((digest, OperatorGrant::EVERYTHING.into()));
            }
            [name, role, domains, digest] => {
                OperatorGrant::check_name(name)?;
                let grant = OperatorGrant {
                    name: Some(name.to_owned()),
                    role: role.parse()?,
                    domains: domains.parse()?,
                };
                let digest = read_digest(digest).ok_or(
                    "the SHA-256 of the token must be 64 hexadecimal digits: `quotagate token new` prints it",
                )?;
                if self.tokens.iter().any(|(other, _)| *other == digest) {
                    return Err(
                        "an earlier line has the same token: make one for each name".to_owned()
                    );
                }
                self.tokens.push((digest, grant.into()));
            }
            _ => {
                return Err(format!(
                    "it has {} words: write one token of visible ASCII characters, or NAME ROLE DOMAINS SHA256, \
                     or group:NAME ROLE DOMAINS",
                    words.len()
                ));
            }
        }
        Ok(())
    }
}

/// Checks that a line which can be read is more than the beginning of another one. A line with a
/// digest always is.
///
/// # Errors
/// What is wrong with it, and the remedy.
fn check_whole(line: &str, is_unended: bool) -> Result<(), String> {
    if line.starts_with(GROUP) && is_unended {
        return Err(
            "no line end follows, so the end of DOMAINS may be missing: end the line".to_owned()
        );
    }
    if line.contains(char::is_whitespace) {
        return Ok(());
    }
    if line.len() < MIN_TOKEN || line.contains('@') {
        return Err(format!(
            "it would be a token without a name, which may do everything, but it looks like a name: add ROLE \
             DOMAINS SHA256, or make a token of at least {MIN_TOKEN} characters, without @"
        ));
    }
    // Where a file of names is cut, the last line may be a name.
    if is_unended && OperatorGrant::check_name(line).is_ok() {
        return Err(
            "it would be a token without a name, which may do everything, but no line end follows, \
             so it may be a name whose rest is missing: end the line"
                .to_owned(),
        );
    }
    Ok(())
}

fn read_digest(text: &str) -> Option<TokenDigest> {
    let mut digest = TokenDigest::default();
    let digits = text.as_bytes();
    if digits.len() != digest.len() * 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_valid_tokens_are_admitted() {
        let tokens = Tokens::new(b"s3cret-of-the-callers\n\n 0ther-token-of-callers \r\n").unwrap();
        for good in [
            "Bearer s3cret-of-the-callers",
            "bearer s3cret-of-the-callers",
            "Bearer 0ther-token-of-callers",
        ] {
            assert!(tokens.called_domains(good.as_bytes()).is_some(), "{good}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer s3cret-of-the-caller",
            "Bearer s3cret-of-the-callerss",
            "Basic s3cret-of-the-callers",
            "s3cret-of-the-callers",
            "Bearer s3cret-of-the-callers\n0ther-token-of-callers",
        ] {
            assert!(tokens.called_domains(wrong.as_bytes()).is_none(), "{wrong}");
        }
        for none in ["", "\n", "a b", "a-good-token-of-callers\nno good"] {
            assert!(Tokens::new(none.as_bytes()).is_none(), "{none:?}");
        }
    }

    #[test]
    fn token_file_is_read_again_and_a_wrong_one_keeps_the_last_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, "the-old-token-of-callers\n").unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        let shared = tokens.clone();
        let valid = || {
            ["the-old-token-of-callers", "the-new-token-of-callers"]
                .map(|token| shared.called_domains(format!("Bearer {token}").as_bytes()).is_some())
        };
        for (text, expected) in [
            (Some("the-old-token-of-callers\n"), [true, false]),
            (Some("the-old-token-of-callers\nthe-new-token-of-callers\n"), [true, true]),
            (Some(""), [true, true]),
            (None, [true, true]),
            (Some("two words\n"), [true, true]),
            (Some("the-new-token-of-callers\n"), [false, true]),
        ] {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            tokens.read_again();
            assert_eq!(valid(), expected, "{text:?}");
        }
    }

    /// A line, and the digest of its token.
    fn line(name: &str, role: &str, domains: &str) -> String {
        let digest = digest_of(name.as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {role} {domains} {digits}")
    }

    #[test]
    fn named_tokens_are_for_operators_and_unnamed_ones_for_all() {
        let plain = "a-token-without-a-name";
        let (ann, edge) = (line("ann", "operate", "pay,shop"), line("edge", "call", "pay,shop"));
        let text = format!("# operators\n{plain}\n{ann}\n{edge}\n");
        let tokens = Tokens::new(text.as_bytes()).unwrap();
        let called = |token: &str| tokens.called_domains(format!("Bearer {token}").as_bytes());
        assert_eq!((called(plain), called("ann")), (Some(DomainScope::All), None));
        assert_eq!(called("edge"), Some("pay,shop".parse().unwrap()));
        let grant = |token: &str| tokens.grant(&digest_of(token.as_bytes()));
        assert_eq!(*grant(plain).unwrap(), OperatorGrant::EVERYTHING);
        let ann = grant("ann").unwrap();
        assert_eq!(
            (ann.name.as_deref(), ann.role.to_string(), ann.domains.to_string()),
            (Some("ann"), "operate".to_owned(), "pay,shop".to_owned())
        );
        assert!(grant("bob").is_none() && grant("").is_none());
        // While a token is replaced, both are valid.
        let two = line("ann", "view", "*").replace("ann view", "bob view") + "\n";
        let two = Tokens::new((two + &line("bob", "view", "*")).as_bytes()).unwrap();
        for token in ["ann", "bob"] {
            let grant = two.grant(&digest_of(token.as_bytes())).unwrap();
            assert_eq!(grant.name.as_deref(), Some("bob"), "{token}");
        }
    }

    #[test]
    fn token_belongs_to_one_line_in_either_order() {
        let token = "a-token-of-two-lines";
        let named = line(token, "view", "shop");
        for (text, wrong) in [
            (format!("{named}\n{token}\n"), Some("line 2: an earlier line has the same token")),
            (format!("{token}\n{named}\n"), Some("line 2: an earlier line has the same token")),
            // Twice the same token without a name gives nobody more.
            (format!("{token}\n{token}\n"), None),
        ] {
            let faults = TokenLines::parse(text.as_bytes()).err().unwrap_or_default();
            let fault = faults.first().map(String::as_str);
            assert_eq!(fault.is_some(), wrong.is_some(), "{faults:?}");
            assert!(fault.unwrap_or_default().starts_with(wrong.unwrap_or_default()), "{faults:?}");
            assert!(!faults.concat().contains(token), "{faults:?}");
        }
    }

    #[test]
    fn file_that_is_cut_anywhere_gives_nobody_more() {
        let name = "jonathan.smithson-of-operations";
        let long = "7".repeat(63);
        let whole = format!(
            "# ops\n{}\n{}\n{}\ngroup:sre operate shop,pay\n",
            line(name, "view", "shop"),
            line(&long, "view", "shop"),
            line("maximilian-of-the-shop-team", "operate", "shop,pay")
        );
        let all = TokenLines::parse(whole.as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}"));
        for end in 0..whole.len() {
            let Ok(cut) = TokenLines::parse(&whole.as_bytes()[..end]) else { continue };
            assert!(cut.tokens.iter().all(|of| all.tokens.contains(of)), "{}", &whole[..end]);
            assert!(cut.groups.is_empty(), "{}", &whole[..end]);
        }
        for (text, is_good) in [
            // What `openssl rand -hex 32` prints, in a Secret without a line end.
            ("0f1b8f9a25f9b1a7a9f9d5b9a2a7b3d7d35b5d0f7d5c7f8a1a7b3c3f7e9d2b11", true),
            ("qg_6nqkcwTHPT3Q5mF0Y1uXr8b2nC4vJ7sLw9eZk0aGxQo", true),
            ("twenty=characters/or", true),
            ("twenty-characters-or-more\n", true),
            ("twenty-characters-or-more", false),
            ("a\n", false),
            ("nineteen-characters\n", false),
            ("group:sre admin *\n", true),
            ("group:sre admin *", false),
        ] {
            assert_eq!(TokenLines::parse(text.as_bytes()).is_ok(), is_good, "{text}");
        }
    }

    #[test]
    fn members_of_several_groups_get_what_each_of_them_may() {
        let tokens = Tokens::new(b"group:/ops operate shop\ngroup:sre admin *\n").unwrap();
        let roles = |groups: &[&str]| {
            let grants = tokens.grants_of(groups.iter().copied());
            grants.iter().map(|grant| grant.role.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(roles(&["sre", "other", "/ops"]), ["admin", "operate"]);
        assert_eq!(roles(&["group:sre", ""]), [""; 0]);
    }

    #[test]
    fn all_faults_of_a_file_are_named_with_their_lines_and_without_their_content() {
        let good = line("ann", "view", "*");
        let text = format!(
            "{good}\nS3CRET word\n\nann S3CRET * {d}\nann view S3CRET! {d}\nan:n view * {d}\nbob view * S3CRET\n\
             bob view * {d}\ngroup:x S3CRET\ngroup: view *\nbob\njonathan.smithson@example.com\n",
            d = good.rsplit(' ').next().unwrap()
        );
        let faults = TokenLines::parse(text.as_bytes()).err().unwrap();
        let expected = [
            "line 2: it has 2 words: write one token",
            "line 4: the role must be one of call, view, operate, publish, admin",
            "line 5: the domains must be *",
            "line 6: the name must be 1 to 63",
            "line 7: the SHA-256 of the token must be 64",
            "line 8: an earlier line has the same token",
            "line 9: the line of a group must be",
            "line 10: write the name of the group",
            "line 11: it would be a token without a name",
            "line 12: it would be a token without a name",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.starts_with(expected), "{fault}");
        }
        assert!(!faults.concat().contains("S3CRET"), "{faults:?}");
        let many = "two words\n".repeat(30);
        let faults = TokenLines::parse(many.as_bytes()).err().unwrap();
        assert_eq!((faults.len(), faults.last().unwrap().as_str()), (21, "and 10 more"));
    }
}
