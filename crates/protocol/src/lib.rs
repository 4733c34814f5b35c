//! The messages between filter and store, which both sides share.
//!
//! [`ReserveRequest`] and [`ReserveReply`] are the bodies of `POST /v1/reserve`; [`dials`] has
//! those of `POST /v1/telemetry`. A [`Window`] says when a counter restarts. The adapters of both
//! sides own paths, headers and retries.
//!
//! Filters and stores of neighbouring versions understand each other ([`PROTOCOL`]).

pub mod dials;
mod grants;
mod key;
mod lenient;
mod mode;
mod reserve;
mod window;

pub use key::{CounterKey, MAX_NAME, is_domain, is_of_name, is_policy};
pub use mode::{Mode, OnFailure};
pub use reserve::{
    Adjustment, Grant, HOLDING, Holding, Invalid, MAX_WORKER, Reservation, ReserveReply,
    ReserveRequest,
};
pub use window::{
    Calendar, Fixed, Kind, MAX_CALENDAR_S, MAX_TIME_ZONE, MAX_WINDOW_S, SLICES, Sliding, Unit,
    Window, share_of,
};

/// The version of the protocol. A worker states its own in each report, and calls for units carry
/// none. Reports without a version are of version 0.
///
/// Both sides ignore fields that they do not know. So a new field may only help. What changes how
/// units are counted is a new value of [`Kind`]: an older store fails the items that carry it. A
/// change that neither of the two can express needs a new path.
pub const PROTOCOL: u32 = 1;
/// The version of the build, which workers state beside [`PROTOCOL`].
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
/// The path of a call for units.
pub const RESERVE_PATH: &str = "/v1/reserve";
/// Most items (refunds, charges and reservations together) in one call.
pub const MAX_ITEMS: usize = 1024;
/// Largest body of a call and of its reply, in bytes.
pub const MAX_BODY: usize = 1024 * 1024;
/// Largest quota, cost and number of units: 2^53 - 1, the largest integer that JSON, Lua and Redis
/// all hold exactly.
pub const MAX_UNITS: u64 = (1 << 53) - 1;
/// Longest key of a counter, in bytes.
pub const MAX_KEY: usize = 4096;

/// A field with its default is left out of the message.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
