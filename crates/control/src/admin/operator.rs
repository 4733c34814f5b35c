//! Who uses the admin address, and what a request of theirs may touch.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::Request;
use quotagate_operate::api::MAX_BY;
use quotagate_operate::{Author, clean_text};
use quotagate_store::server::{
    DomainScope, OperatorGrant, OperatorRole, PeerAddress, TokenDigest, Tokens,
};

use super::error::Refusal;

/// What an operator has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing, because no token is required.
    Nothing,
    /// A token with this digest.
    Token(TokenDigest),
    /// A header of a trusted proxy, which names the operator and these groups.
    Groups(Vec<String>),
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The name of the token, or that which a trusted proxy gave.
    pub name: Option<String>,
    /// What the operator may do: all that one of these allows.
    pub grants: Vec<Arc<OperatorGrant>>,
    /// What the operator has shown for that.
    pub shown: Shown,
    /// The header that names the operator, if a trusted proxy does.
    pub header: Option<String>,
    /// From where the request came.
    pub peer: Option<PeerAddress>,
    /// The tokens that were valid then, and their updates.
    pub tokens: Option<Tokens>,
}

/// What one request may touch.
#[derive(Clone, Debug)]
pub struct Access {
    /// Who sent it.
    pub operator: Arc<Operator>,
    /// In which domains the operator has the role that the path requires.
    pub scope: DomainScope,
    /// The method and the path.
    pub action: String,
}

impl Operator {
    /// The operator's greatest role, in this domain if one is named.
    pub fn role(&self, domain: Option<&str>) -> Option<OperatorRole> {
        let there = |grant: &&Arc<OperatorGrant>| domain.is_none_or(|name| grant.domains.has(name));
        self.grants.iter().filter(there).map(|grant| grant.role).max()
    }

    /// The domains in which the operator has this role; `None` if there are none.
    pub fn scope(&self, role: OperatorRole) -> Option<DomainScope> {
        let grants = self.grants.iter().filter(|grant| grant.role >= role);
        grants.map(|grant| grant.domains.clone()).reduce(|all, domains| all.union(&domains))
    }

    /// Whether what was shown still allows the same.
    pub fn is_current(&self) -> bool {
        grants_of(self.tokens.as_ref(), &self.shown).is_some_and(|grants| grants == self.grants)
    }
}

impl Operator {
    /// An operator of whom only the address is known.
    fn unknown(peer: Option<PeerAddress>) -> Self {
        let shown = Shown::Nothing;
        Self { name: None, grants: Vec::new(), shown, header: None, peer, tokens: None }
    }
}

impl Access {
    /// What a request may touch whose operator is not known yet: nothing.
    pub fn new<B>(request: &Request<B>) -> Self {
        let peer = request.extensions().get::<PeerAddress>().copied();
        Self {
            operator: Arc::new(Operator::unknown(peer)),
            scope: DomainScope::Some(BTreeSet::new()),
            action: format!("{} {}", request.method(), clean_text(request.uri().path(), MAX_BY)),
        }
    }

    /// The same, where the path requires this role.
    ///
    /// # Errors
    /// If the operator has it in no domain.
    pub fn with_role(self, role: OperatorRole) -> Result<Self, Refusal> {
        match (self.operator.scope(role), self.operator.role(None)) {
            (Some(scope), _) => Ok(Self { scope, ..self }),
            (None, Some(has)) => Err(Refusal::Role { who: self.who(), has, wants: role }),
            (None, None) => Err(Refusal::Token),
        }
    }

    /// Checks that the operator may touch this domain.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, domain: &str) -> Result<(), Refusal> {
        if self.scope.has(domain) {
            return Ok(());
        }
        let (domain, scope) = (domain.to_owned(), self.scope.clone());
        Err(Refusal::Scope { who: self.who(), domain, scope })
    }

    /// The name of the operator, for errors.
    pub fn who(&self) -> String {
        self.operator.name.clone().unwrap_or_else(|| "the token".to_owned())
    }

    /// The author of the changes of this request in a domain. `said` is the name that the caller
    /// gives.
    pub fn author(
        &self,
        domain: Option<&str>,
        said: Option<String>,
        reason: Option<String>,
    ) -> Author {
        let Operator { name, header, peer, .. } = &*self.operator;
        Author {
            role: name.as_ref().and_then(|_| self.operator.role(domain)),
            address: peer.map(|peer| peer.to_string()),
            header: header.clone(),
            action: Some(self.action.clone()),
            remark: said.filter(|_| name.is_some()),
            reason,
        }
    }
}

/// What is allowed for that which was shown; `None` if nothing is.
pub fn grants_of(tokens: Option<&Tokens>, shown: &Shown) -> Option<Vec<Arc<OperatorGrant>>> {
    let grants = match (shown, tokens) {
        (Shown::Nothing, None) => vec![Arc::new(OperatorGrant::EVERYTHING)],
        (Shown::Token(digest), Some(tokens)) => tokens.grant(digest).into_iter().collect(),
        (Shown::Groups(groups), Some(tokens)) => {
            tokens.grants_of(groups.iter().map(String::as_str))
        }
        (Shown::Nothing, Some(_)) | (Shown::Token(_) | Shown::Groups(_), None) => Vec::new(),
    };
    (!grants.is_empty()).then_some(grants)
}
