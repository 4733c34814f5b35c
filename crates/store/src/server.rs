//! The call endpoint: HTTP/1.1 and HTTP/2, where proxies reserve units.
//!
//! [`CallEndpoint`] answers `POST /v1/reserve` and `POST /v1/telemetry` over a
//! [`Store`](crate::store::Store), and says at `GET /healthz` whether it can. It does the same for
//! a caller in this process, without HTTP: [`CallEndpoint::call`] and [`CallEndpoint::dials`]. The
//! crate `quotagate-operate` watches calls and supplies dials through [`Hooks`]. The crate
//! `quotagate-control` serves the admin address with the same [`Listener`], [`Connections`] and
//! [`Tokens`].

mod body;
mod call;
mod connection;
mod connections;
mod deadlines;
mod endpoint;
mod file_limit;
mod grant;
mod head_frames;
mod health;
mod hooks;
mod listener;
mod log_pace;
mod open;
mod paced;
mod refusal;
mod reply;
mod requests;
mod reserve;
mod route;
mod telemetry;
mod token;
mod tracked;

pub use self::body::{MAX_ARRIVAL, read_json, receive};
pub use self::call::CarriedOut;
pub use self::connections::{Callers, Connections, spread};
pub use self::endpoint::CallEndpoint;
pub use self::file_limit::raise_file_limit;
pub use self::grant::{DomainScope, OperatorGrant, OperatorRole, TOKEN_MARK};
pub use self::hooks::{Event, Hooks};
pub use self::listener::{
    ConnectionAge, ListenAddr, ListenAddrError, Listener, PeerAddress, Stream,
};
pub use self::refusal::{Refusal, STORE_HEADER};
pub use self::requests::Arriving;
pub use self::token::{TokenDigest, Tokens, digest_of, shown_digest};
pub use self::tracked::SharedBytes;
