//! What the holder of a token may do on the admin address.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

/// Longest name of a token, in bytes. 64 hexadecimal digits are a token.
const MAX_NAME: usize = 63;
/// What begins every token that `quotagate token new` makes, and no name.
pub const TOKEN_MARK: &str = "qg_";

/// A role. Each one of operators may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorRole {
    /// Calls the store as a proxy of its domains, and is no operator.
    Call,
    /// Sees everything of its domains.
    View,
    /// Sets and clears dials and runtime overrides, and resets counters.
    Operate,
    /// Publishes policy documents.
    Publish,
    /// Forgets domains.
    Admin,
}

impl OperatorRole {
    /// All roles, and their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Call, "call"),
        (Self::View, "view"),
        (Self::Operate, "operate"),
        (Self::Publish, "publish"),
        (Self::Admin, "admin"),
    ];
}

impl fmt::Display for OperatorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(role, _)| role == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for OperatorRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|(role, _)| *role);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            format!("the role must be one of {names}")
        })
    }
}

/// The domains that a grant is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainScope {
    /// All domains: `*`.
    All,
    /// Only these.
    Some(BTreeSet<String>),
}

impl DomainScope {
    /// Whether this domain is in it.
    pub fn has(&self, domain: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(domain),
        }
    }

    /// The domains of both.
    #[must_use]
    pub fn union(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Some(mut names), Self::Some(more)) => {
                names.extend(more.iter().cloned());
                Self::Some(names)
            }
            (Self::All, _) | (_, Self::All) => Self::All,
        }
    }
}

impl fmt::Display for DomainScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Some(names) => {
                f.write_str(&names.iter().map(String::as_str).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for DomainScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::All);
        }
        let names: BTreeSet<String> = text.split(',').map(str::to_owned).collect();
        if names.iter().all(|name| is_domain(name)) {
            Ok(Self::Some(names))
        } else {
            Err("the domains must be *, or names with commas and no spaces between them".to_owned())
        }
    }
}

/// What the holder of a token, or the members of a group, may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorGrant {
    /// The name of the token, which history records. `None` for a token without a name, which
    /// everyone may share.
    pub name: Option<String>,
    /// What they may do.
    pub role: OperatorRole,
    /// Where.
    pub domains: DomainScope,
}

impl OperatorGrant {
    /// Everything, without a name.
    pub const EVERYTHING: Self =
        Self { name: None, role: OperatorRole::Admin, domains: DomainScope::All };

    /// Checks the name of a token.
    ///
    /// # Errors
    /// What is wrong, without the name.
    pub fn check_name(name: &str) -> Result<(), String> {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._@+-".contains(&b);
        let reads_as_name = name.bytes().any(|b| b.is_ascii_alphanumeric());
        if name.starts_with(TOKEN_MARK) {
            Err(format!("the name must not begin with {TOKEN_MARK}, as tokens do"))
        } else if name.len() <= MAX_NAME && name.bytes().all(good) && reads_as_name {
            Ok(())
        } else {
            Err(format!(
                "the name must be 1 to {MAX_NAME} of the characters A-Z a-z 0-9 . _ @ + -, with a \
                 letter or digit among them"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_domains_are_written_as_they_are_read() {
        for (role, name) in OperatorRole::ALL {
            assert_eq!((role.to_string().as_str(), name.parse()), (name, Ok(role)));
        }
        assert!(
            "root"
                .parse::<OperatorRole>()
                .unwrap_err()
                .contains("call, view, operate, publish, admin")
        );
        for text in ["*", "shop", "pay,shop"] {
            assert_eq!(text.parse::<DomainScope>().unwrap().to_string(), text);
        }
        for wrong in ["", "shop,", "shop,*", "sh op"] {
            assert!(wrong.parse::<DomainScope>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_tokens_can_be_told_from_signs() {
        for good in ["a", "7", "ann@example.com", "ci-shop.v2_+"] {
            assert_eq!(OperatorGrant::check_name(good), Ok(()), "{good}");
        }
        for wrong in ["", "-", "@", "a b", "ä", "a:b", "qg_a", &"a".repeat(MAX_NAME + 1)] {
            assert!(OperatorGrant::check_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn domains_of_several_grants_add_up() {
        let of = |text: &str| text.parse::<DomainScope>().unwrap();
        assert_eq!(of("shop").union(&of("pay")), of("pay,shop"));
        assert_eq!((of("shop").union(&of("*")), of("*").union(&of("shop"))), (of("*"), of("*")));
        assert!(of("shop").has("shop") && !of("shop").has("shopping") && of("*").has("any"));
    }
}
