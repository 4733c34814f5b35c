//! Where the counters are, and how the filter reaches them.

use std::fmt;

use crate::document::fault::Fault;
use crate::document::names::Names;
use crate::document::{Node, NonEmpty, Type, one_of};

/// How the filter reaches the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By calls to `quotagate serve`. Both forms of the filter can do that.
    Cluster(ClusterStore),
    /// The store is inside the filter. Only the native form can do that.
    Redis(RedisStore),
    /// Not at all: the document was refused, and what it says of the store cannot be read or used.
    Nowhere,
}

/// A store behind an Envoy cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterStore {
    /// The Envoy cluster of the store.
    pub name: Box<str>,
    /// The bearer token that the store checks.
    pub token: Option<Box<str>>,
}

/// A store inside the filter. The store's library checks the rest of the URL.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// The store URL. It may hold a password.
    pub url: Box<str>,
    /// The file that holds the password.
    pub password_file: Option<Box<str>>,
    /// The first part of every key in Redis.
    pub prefix: Box<str>,
}

/// The first part of every key in Redis, unless the document or the command names another one.
pub const DEFAULT_PREFIX: &str = "qg";

/// Longest token, in bytes. The filter sends it with every call.
const MAX_TOKEN: usize = 4096;

/// What a store URL begins with. `memory:` is a whole one.
const SCHEMES: [&str; 8] = [
    "memory:",
    "redis://",
    "rediss://",
    "redis+unix://",
    "redis-cluster://",
    "rediss-cluster://",
    "redis-sentinel://",
    "rediss-sentinel://",
];

const NO_TOKEN: &str = "belongs to cluster, since `quotagate serve` checks it: Redis takes the user and password of its URL, \
                        or a password_file";
const NO_PASSWORD: &str =
    "belongs to redis: with cluster, give it to `quotagate serve` (--password-file)";
const NO_PREFIX: &str = "belongs to redis: with cluster, give it to `quotagate serve` (--prefix)";

impl Reach {
    /// The bearer token of every call.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Cluster(ClusterStore { token, .. }) => token.as_deref(),
            Self::Redis(_) | Self::Nowhere => None,
        }
    }

    /// Whether every key of the same counter differs in Redis. A store behind an Envoy cluster
    /// chooses the prefix itself.
    pub fn moves_keys(&self, new: &Self) -> bool {
        matches!((self, new), (Self::Redis(old), Self::Redis(new)) if old.prefix != new.prefix)
    }

    /// The store that Envoy calls. The Wasm form of the filter reaches no other.
    ///
    /// # Errors
    /// What to write instead.
    pub fn called_by_envoy(&self) -> Result<&ClusterStore, Fault> {
        match self {
            Self::Cluster(cluster) => Ok(cluster),
            Self::Redis(_) | Self::Nowhere => Err(Fault {
                path: "store.redis".to_owned(),
                message: "needs the native form of the filter (libquotagate.so), since the Wasm form has no Redis client: load \
                          that, or run `quotagate serve` beside Envoy and write the name of its Envoy cluster as store.cluster"
                    .to_owned(),
            }),
        }
    }
}

impl ClusterStore {
    /// The value of the header `authorization` of every call.
    pub fn authorization(&self) -> Option<Box<str>> {
        self.token.as_ref().map(|token| format!("Bearer {token}").into())
    }
}

impl fmt::Debug for ClusterStore {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterStore({})", self.name)
    }
}

impl fmt::Debug for RedisStore {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, password_file, prefix } = self;
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        write!(f, "RedisStore({scheme}, {password_file:?}, {prefix})")
    }
}

one_of! {
    /// Where the counters are.
    ReachType<'a> -> Given<'a> {
        /// The name of the Envoy cluster of `quotagate serve`.
        cluster: NonEmpty = "quota_store" => Given::Cluster,
        /// A store URL: a store inside the filter, without `quotagate serve`. Only the native form
        /// has one.
        redis: StoreUrl = "redis-cluster://r1:6379,r2:6379" => Given::Redis,
    }
}

/// The alternative that a document gives.
pub(crate) enum Given<'a> {
    Cluster(&'a str),
    Redis(&'a str),
}

/// A field beside the alternatives. `None` if it has a fault.
type Beside<'a> = Option<Option<(&'a str, Node<'a>)>>;

impl Given<'_> {
    /// Adds the fields that belong to the alternative. The others must be absent.
    pub(super) fn with(
        self,
        token: Beside<'_>,
        file: Beside<'_>,
        prefix: Beside<'_>,
    ) -> Option<Reach> {
        let misplaced = |field: &Beside<'_>, why: &str| {
            let misplaced = field.as_ref().and_then(Option::as_ref);
            misplaced.inspect(|(_, node)| node.fault(why)).is_some()
        };
        let wrong = match self {
            Self::Cluster(_) => misplaced(&file, NO_PASSWORD) | misplaced(&prefix, NO_PREFIX),
            Self::Redis(_) => misplaced(&token, NO_TOKEN),
        };
        if wrong {
            return None;
        }
        let text = |field: Option<(&str, Node<'_>)>| field.map(|(text, _)| Box::from(text));
        Some(match self {
            Self::Cluster(name) => {
                Reach::Cluster(ClusterStore { name: name.into(), token: text(token?) })
            }
            Self::Redis(url) => {
                if let Some(Some((path, node))) = &file
                    && !path.starts_with('/')
                {
                    node.warn("is relative to the directory in which Envoy was started");
                }
                Reach::Redis(RedisStore {
                    url: url.into(),
                    password_file: text(file?),
                    prefix: text(prefix?).unwrap_or_else(|| DEFAULT_PREFIX.into()),
                })
            }
        })
    }
}

/// A store URL. Only its beginning is checked here. No message shows the text.
enum StoreUrl {}

impl Type for StoreUrl {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let url = node.text()?;
        let known = |scheme: &&str| {
            if scheme.ends_with('/') { url.starts_with(scheme) } else { url == *scheme }
        };
        let Some(scheme) = SCHEMES.iter().find(|scheme| known(scheme)) else {
            node.fault(format!("must be a store URL, which begins with {}", SCHEMES.join(", ")));
            return None;
        };
        if url == "memory:" {
            node.warn("counts in this proxy alone: other proxies do not share the quotas, and a restart loses the counters");
        } else if url.rsplit_once('@').is_some_and(|(before, _)| holds_password(before, scheme)) {
            node.warn("holds a password, which Envoy shows in its /config_dump: put it into a password_file");
        }
        Some(url)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": "^(memory:$|rediss?(-cluster|-sentinel)?://|redis\\+unix://)"})
    }
}

/// Whether there is a password before the `@` of a URL.
fn holds_password(before: &str, scheme: &str) -> bool {
    let credentials = before.strip_prefix(scheme).unwrap_or_default();
    credentials.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

/// A prefix of keys in Redis.
pub(super) enum KeyPrefix {}

const PREFIX: Names = Names {
    most: 64,
    allowed: |b| b.is_ascii_alphanumeric() || b"._-".contains(&b),
    pattern: "[A-Za-z0-9._-]{1,64}",
};

impl Type for KeyPrefix {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        PREFIX.read(node)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        PREFIX.schema()
    }
}

/// A bearer token (`b64token` of RFC 6750). No message shows the text.
pub(super) enum Token {}

impl Type for Token {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let text = node.text()?;
        node.no_longer_than(text, MAX_TOKEN)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/".contains(&b);
        let padded = text.trim_end_matches('=');
        if !padded.is_empty() && padded.bytes().all(allowed) {
            return Some(text);
        }
        node.fault("must be a bearer token: letters, digits and -._~+/, and = only at its end");
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": "^[A-Za-z0-9._~+/-]+=*$", "maxLength": MAX_TOKEN})
    }
}
