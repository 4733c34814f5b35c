//! The real fleet.
